//go:build tools

// The real nsqd, by name: `go build github.com/nsqio/nsq/apps/nsqd` in this module. The import
// below is never compiled; it keeps what nsqd needs in go.mod and go.sum.
package nsqd

import _ "github.com/nsqio/nsq/apps/nsqd"
