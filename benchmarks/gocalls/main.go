// Gocalls makes the system calls that go-diskq makes for a piece of work, or sej (append, flush, scan), and
// does nothing between them: no encoding, no decoding, no searching, no choice of a partition.
//
//	gocalls ACT --dir DIR [--flag ...]
//
// Law: go-diskq's time is about that of its calls, and of its own work besides. So the ratio to an act of this
// program is about the least that the ratio to go-diskq is; it is no strict bound, as the scheduler of goroutines
// may take longer here than there. Each act says which calls it makes, of which sizes and in which order; they
// are made as Go makes them, through os.File. The content of the bytes is arbitrary: no program reads these files.
//
// The clock runs over the calls alone; making and filling the files is outside. An act reports one
// JSON object on one line; errors are one line on stderr, with exit code 1.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// What all acts are told. Sizes in bytes.
type options struct {
	dir         string
	count       int
	record      int
	segmentSize int
	partitions  int
	producers   int
	sync        bool
	pace        time.Duration
}

var acts = map[string]func(options) (measured, error){
	"push":    push,
	"read":    read,
	"consume": consume,
	"lookup":  lookup,
	"latency": latency,
	"across":  across,
	"append":  bufferedAppend,
	"flush":   appendAndFlush,
	"scan":    scan,
}

type report struct {
	Go    string `json:"go"`
	Act   string `json:"act"`
	Count int    `json:"count"`
	measured
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gocalls: "+strings.Join(strings.Fields(err.Error()), " "))
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("say what to do: push, read, consume, lookup, latency, across, append, flush or scan")
	}
	o, err := parse(args[1:])
	if err != nil {
		return err
	}
	if args[0] == "pushes" { // the other process of across
		return pushWhenAsked(o, os.Stdin)
	}
	act, ok := acts[args[0]]
	if !ok {
		return fmt.Errorf("no act %q", args[0])
	}
	found, err := act(o)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(report{runtime.Version(), args[0], o.count, found})
}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("gocalls", flag.ContinueOnError)
	flags.StringVar(&o.dir, "dir", "", "an empty directory; what is made in it stays")
	flags.IntVar(&o.count, "count", 100_000, "messages, or lookups")
	flags.IntVar(&o.record, "record", 128, "bytes of a record: 20, key and value")
	flags.IntVar(&o.segmentSize, "segment-size", 32<<20, "bytes of data at which a segment is followed by the next")
	flags.IntVar(&o.partitions, "partitions", 1, "partitions, taken in turn (push)")
	flags.IntVar(&o.producers, "producers", 1, "goroutines that push (push)")
	flags.BoolVar(&o.sync, "sync", false, "sync after each message (push)")
	flags.DurationVar(&o.pace, "pace", 0, "pause before each message (latency, across)")
	if err = flags.Parse(args); err != nil {
		return
	}
	if o.dir == "" || o.count < 1 || o.partitions < 1 || o.producers < 1 || o.record < 8 || o.segmentSize < 1 {
		err = errors.New("--dir is needed, --record starts at 8, other numbers at 1")
	}
	return
}
