module gopeer

go 1.21

require github.com/nsqio/go-diskqueue v1.0.0
