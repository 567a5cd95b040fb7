// go-diskqueue: put, get, peek, empty, info. Its benchmark is in nsq_bench.go.
// What to expect of its files: docs/format/nsq.md.

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nsqio/go-diskqueue"
)

const nsqModule = "github.com/nsqio/go-diskqueue"

var nsqCommands = commands{
	"put":   {"put the messages on stdin", nsqPut},
	"get":   {"take messages, until the queue is drained or --count of them", nsqGet},
	"peek":  {"show the next messages without touching the directory", nsqPeek},
	"empty": {"throw away what is pending", nsqEmpty},
	"info":  {"tell the depth at open without touching the directory", nsqInfo},
	"bench": {"measure: " + keys(nsqBenchmarks), nsqBench},

	"hammer": {"put numbered messages, and say each number after its Put", nsqHammer},
}

// --- opening ------------------------------------------------------------------------------------

// nsqOptions are the arguments of diskqueue.New, with nsqd's defaults where it has them.
type nsqOptions struct {
	dir, name       string
	maxBytesPerFile int64
	minMsg, maxMsg  int
	syncEvery       int64
	syncTimeout     time.Duration
}

func (o *nsqOptions) define(flags *flag.FlagSet) {
	flags.StringVar(&o.dir, "dir", "", "the directory, which must exist")
	flags.StringVar(&o.name, "name", "", "the queue's name")
	o.defineTuning(flags, 2500)
}

func (o *nsqOptions) defineTuning(flags *flag.FlagSet, syncEvery int64) {
	flags.Int64Var(&o.maxBytesPerFile, "max-bytes-per-file", 100<<20, "roll before a file grows over this many bytes")
	flags.IntVar(&o.minMsg, "min-msg", 0, "smallest legal body, bytes")
	flags.IntVar(&o.maxMsg, "max-msg", 1<<24, "largest legal body, bytes")
	flags.Int64Var(&o.syncEvery, "sync-every", syncEvery, "puts and reads between two syncs")
	flags.DurationVar(&o.syncTimeout, "sync-timeout", 2*time.Second, "time between two syncs, above 0")
}

// parse also refuses what diskqueue.New would take and fail on later, or panic.
func (o *nsqOptions) parse(flags *flag.FlagSet, args []string) error {
	if err := parse(flags, args); err != nil {
		return err
	}
	switch {
	case o.dir == "":
		return errors.New("--dir is missing")
	case o.name == "":
		return errors.New("--name is missing")
	case o.minMsg < 0 || o.maxMsg > math.MaxInt32-4:
		return fmt.Errorf("--min-msg and --max-msg are 0 to %d", math.MaxInt32-4)
	case o.syncTimeout <= 0:
		return errors.New("--sync-timeout must be above 0")
	case strings.Contains(o.dir, "%"):
		return errors.New("--dir holds a %, which go-diskqueue takes for a format")
	}
	if info, err := os.Stat(o.dir); err != nil {
		return err
	} else if !info.IsDir() {
		return fmt.Errorf("%s is no directory", o.dir)
	}
	return nil
}

// An nsqQueue is an open go-diskqueue and what it has complained about.
type nsqQueue struct {
	diskqueue.Interface
	mutex    sync.Mutex
	warnings []string
}

func (o *nsqOptions) open() *nsqQueue {
	queue := &nsqQueue{warnings: []string{}}
	queue.Interface = diskqueue.New(o.name, o.dir, o.maxBytesPerFile, int32(o.minMsg), int32(o.maxMsg),
		o.syncEvery, o.syncTimeout, queue.log)
	return queue
}

func (q *nsqQueue) log(level diskqueue.LogLevel, format string, args ...interface{}) {
	if level < diskqueue.WARN {
		return
	}
	q.mutex.Lock()
	defer q.mutex.Unlock()
	q.warnings = append(q.warnings, level.String()+": "+oneLine(fmt.Sprintf(format, args...)))
}

// An nsqEnding is how a command leaves the queue.
type nsqEnding struct{ abandon, noCloseSync bool }

func (e *nsqEnding) define(flags *flag.FlagSet) {
	flags.BoolVar(&e.abandon, "abandon", false, "exit without Close: the process is gone, what write(2) took stays")
	flags.BoolVar(&e.noCloseSync, "no-close-sync", false, "stop the worker and close the files, but write no metadata (go-diskqueue's Delete)")
}

// end reports last, because with --abandon it does not return. Whoever asks for Depth first has
// waited for a sync that was due, so that an abandoned directory is the same in every run.
func (q *nsqQueue) end(e nsqEnding, to io.Writer, summary func() any) error {
	var err error
	switch {
	case e.abandon:
	case e.noCloseSync:
		err = q.Delete()
	default:
		err = q.Close()
	}
	if err == nil {
		err = report(to, summary())
	}
	if e.abandon && err == nil {
		os.Exit(0)
	}
	return err
}

func (q *nsqQueue) complaints() []string {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	return append([]string{}, q.warnings...)
}

// --- put ----------------------------------------------------------------------------------------

type nsqPutReport struct {
	Count    int      `json:"count"`
	Depth    int64    `json:"depth"`
	Warnings []string `json:"warnings"`
}

func nsqPut(args []string) error {
	flags := newFlags("nsq put")
	var options nsqOptions
	var ending nsqEnding
	options.define(flags)
	ending.define(flags)
	if err := options.parse(flags, args); err != nil {
		return err
	}
	queue := options.open()
	count, err := putAll(queue, newFrameReader(os.Stdin))
	if err != nil {
		return errors.Join(fmt.Errorf("message %d: %w", count, err), queue.Close())
	}
	depth := queue.Depth()
	return queue.end(ending, os.Stdout, func() any {
		return nsqPutReport{count, depth, queue.complaints()}
	})
}

func putAll(queue *nsqQueue, from frameReader) (count int, err error) {
	for {
		body, err := from.next()
		if errors.Is(err, io.EOF) {
			return count, nil
		}
		if err != nil {
			return count, err
		}
		if err := queue.Put(body); err != nil {
			return count, err
		}
		count++
	}
}

// --- get, peek ----------------------------------------------------------------------------------

type nsqGetReport struct {
	Count        int        `json:"count"`
	DepthAtOpen  int64      `json:"depth_at_open"`
	DepthAtClose int64      `json:"depth_at_close"`
	Stalled      bool       `json:"stalled"`
	Warnings     []string   `json:"warnings"`
	Files        []fileSize `json:"files"`
}

// A drainRule says when a get is over: after count messages (0: no limit), or when nothing came
// for idle and the depth is 0, or when nothing came for stall whatever the depth says, which is
// what a queue with wrong metadata needs.
type drainRule struct{ count, idle, stall int } // idle and stall in milliseconds

func (r *drainRule) define(flags *flag.FlagSet, count int, help string) {
	flags.IntVar(&r.count, "count", count, help)
	flags.IntVar(&r.idle, "idle", 100, "`ms` without a message that end a drain at depth 0")
	flags.IntVar(&r.stall, "stall", 2000, "`ms` without a message that end a drain at any depth")
}

func nsqGet(args []string) error {
	flags := newFlags("nsq get")
	var options nsqOptions
	var ending nsqEnding
	var rule drainRule
	options.define(flags)
	ending.define(flags)
	rule.define(flags, 0, "take this many messages and stop (default: all)")
	out := flags.String("out", "", "write the frames to this file instead of stdout")
	if err := options.parse(flags, args); err != nil {
		return err
	}
	return options.get(rule, ending, *out)
}

// nsqPeek takes from a view, since this release of go-diskqueue cannot peek.
func nsqPeek(args []string) error {
	flags := newFlags("nsq peek")
	var options nsqOptions
	var rule drainRule
	options.define(flags)
	rule.define(flags, 1, "show at most this many messages (0: all)")
	out := flags.String("out", "", "write the frames to this file instead of stdout")
	if err := options.parse(flags, args); err != nil {
		return err
	}
	return options.onView(func(view nsqOptions) error {
		return view.get(rule, nsqEnding{noCloseSync: true}, *out)
	})
}

func (o *nsqOptions) get(rule drainRule, ending nsqEnding, out string) error {
	to, err := newFrameWriter(out)
	if err != nil {
		return err
	}
	queue := o.open()
	result := nsqGetReport{DepthAtOpen: queue.Depth()}
	if err := queue.drain(rule, to, &result); err != nil {
		return errors.Join(err, queue.Close())
	}
	if err := to.close(); err != nil {
		return errors.Join(err, queue.Close())
	}
	result.DepthAtClose = queue.Depth()
	return queue.end(ending, os.Stderr, func() any {
		result.Warnings = queue.complaints()
		result.Files = filesIn(o.dir)
		return result
	})
}

func (q *nsqQueue) drain(rule drainRule, to *frameWriter, result *nsqGetReport) error {
	quiet := 0
	for rule.count == 0 || result.Count < rule.count {
		select {
		case body := <-q.ReadChan():
			if err := to.write(body); err != nil {
				return err
			}
			result.Count++
			quiet = 0
		case <-time.After(time.Duration(rule.idle) * time.Millisecond):
			quiet += rule.idle
			if q.Depth() == 0 {
				return nil
			}
			if quiet >= rule.stall {
				result.Stalled = true
				return nil
			}
		}
	}
	return nil
}

// onView runs act on a directory of symbolic links to the queue's files. Reading follows a link;
// renaming, replacing or unlinking, which is all that a reader does to a file, hits the link and
// spares the queue.
func (o *nsqOptions) onView(act func(nsqOptions) error) error {
	dir, err := os.MkdirTemp("", "gopeer-view-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	original, err := filepath.Abs(o.dir)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(original)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), o.name+".diskqueue.") {
			continue
		}
		if err := os.Symlink(filepath.Join(original, entry.Name()), filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	view := *o
	view.dir = dir
	return act(view)
}

// --- empty, info --------------------------------------------------------------------------------

type nsqEmptyReport struct {
	DepthAtOpen  int64      `json:"depth_at_open"`
	DepthAtClose int64      `json:"depth_at_close"`
	Warnings     []string   `json:"warnings"`
	Files        []fileSize `json:"files"`
}

func nsqEmpty(args []string) error {
	flags := newFlags("nsq empty")
	var options nsqOptions
	var ending nsqEnding
	options.define(flags)
	ending.define(flags)
	if err := options.parse(flags, args); err != nil {
		return err
	}
	queue := options.open()
	before := queue.Depth()
	if err := queue.Empty(); err != nil {
		return errors.Join(err, queue.Close())
	}
	after := queue.Depth()
	return queue.end(ending, os.Stdout, func() any {
		return nsqEmptyReport{before, after, queue.complaints(), filesIn(options.dir)}
	})
}

type nsqInfoReport struct {
	Version  string     `json:"version"`
	Depth    int64      `json:"depth"`
	Warnings []string   `json:"warnings"`
	Files    []fileSize `json:"files"`
}

func nsqInfo(args []string) error {
	flags := newFlags("nsq info")
	var options nsqOptions
	options.define(flags)
	if err := options.parse(flags, args); err != nil {
		return err
	}
	return options.onView(func(view nsqOptions) error {
		queue := view.open()
		depth := queue.Depth()
		return queue.end(nsqEnding{noCloseSync: true}, os.Stdout, func() any {
			return nsqInfoReport{moduleVersion(nsqModule), depth, queue.complaints(), filesIn(options.dir)}
		})
	})
}

// --- what is on disk ----------------------------------------------------------------------------

type fileSize struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
}

// filesIn lists the regular files, by name. A file that goes away meanwhile is not listed.
func filesIn(dir string) []fileSize {
	files := []fileSize{}
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			files = append(files, fileSize{entry.Name(), info.Size()})
		}
	}
	return files
}
