// go-diskqueue, measured in its own process.
//
// What the clock covers: it starts after the queue is open (and, for get, filled, closed and
// opened again) and stops before Close. put and syncput stop when the last Put has returned, get
// and putget when the last message has been received.
//
// What a Put promises when it returns: the bytes are in the page cache. They are not synced, not
// even with --sync-every 1, where go-diskqueue answers before its fsync.

package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

type nsqBenchOptions struct {
	nsqOptions
	size, count          int
	producers, consumers int
	pace                 time.Duration
	repeatOpen           int
}

// A benchmark measures one round on an open queue; filled ones find count messages in it.
type nsqBenchmark struct {
	help      string
	filled    bool
	count     int   // default of --count: a round of a second or so
	syncEvery int64 // default of --sync-every
	run       func(queue *nsqQueue, options nsqBenchOptions) (round, error)
}

var nsqBenchmarks = map[string]nsqBenchmark{
	"put":     {"producers put, nobody reads", false, 400_000, 2500, benchPut},
	"get":     {"consumers drain a queue filled and reopened before", true, 400_000, 2500, benchGet},
	"putget":  {"producers and consumers at the same time", false, 400_000, 2500, benchPutGet},
	"latency": {"from before Put to received, one message at a time", false, 100_000, 2500, benchLatency},
	"syncput": {"as put, with a sync after each", false, 1000, 1, benchPut},
}

func nsqBench(args []string) error {
	known := commands{}
	for name, benchmark := range nsqBenchmarks {
		name, benchmark := name, benchmark
		known[name] = command{benchmark.help, func(args []string) error { return runNsqBench(name, benchmark, args) }}
	}
	return known.dispatch("nsq bench", args)
}

func runNsqBench(name string, benchmark nsqBenchmark, args []string) error {
	flags := newFlags("nsq bench " + name)
	options := nsqBenchOptions{}
	options.name = "bench"
	options.defineBench(flags, benchmark)
	if err := options.parse(flags, args); err != nil {
		return err
	}
	if err := options.check(); err != nil {
		return err
	}
	rounds := make([]round, 0, options.repeatOpen)
	for len(rounds) < options.repeatOpen {
		measured, err := options.measure(benchmark)
		if err != nil {
			return err
		}
		rounds = append(rounds, measured)
	}
	return report(os.Stdout, newBenchReport("go-diskqueue "+moduleVersion(nsqModule), name,
		options.count, options.size, options.settings(), rounds))
}

func (o *nsqBenchOptions) defineBench(flags *flag.FlagSet, benchmark nsqBenchmark) {
	flags.StringVar(&o.dir, "dir", "", "an existing directory; the queue in it is removed after each round")
	o.defineTuning(flags, benchmark.syncEvery)
	flags.IntVar(&o.size, "size", 100, "bytes in a body")
	flags.IntVar(&o.count, "count", benchmark.count, "messages in a round")
	flags.IntVar(&o.producers, "producers", 1, "goroutines that put (put, putget, syncput)")
	flags.IntVar(&o.consumers, "consumers", 1, "goroutines that receive (get, putget)")
	flags.DurationVar(&o.pace, "pace", 0, "pause before each put, so that both sides are asleep (latency); 0 is a closed loop at full speed")
	flags.IntVar(&o.repeatOpen, "repeat-open", 1, "rounds, each on a queue opened anew; the report leads with the median round")
}

func (o *nsqBenchOptions) check() error {
	if o.count < 1 || o.producers < 1 || o.consumers < 1 || o.repeatOpen < 1 || o.size < 0 {
		return errors.New("--count, --producers, --consumers and --repeat-open start at 1, --size at 0")
	}
	if left := o.files(); len(left) > 0 {
		return fmt.Errorf("%s is there already; give an empty directory", left[0])
	}
	return nil
}

func (o *nsqBenchOptions) settings() map[string]any {
	return map[string]any{
		"producers": o.producers, "consumers": o.consumers, "sync_every": o.syncEvery,
		"sync_timeout": o.syncTimeout.Seconds(), "max_bytes_per_file": o.maxBytesPerFile,
		"pace_us": o.pace.Microseconds(),
	}
}

func (o *nsqBenchOptions) files() []string {
	found, _ := filepath.Glob(filepath.Join(o.dir, o.name+".diskqueue.*"))
	return found
}

func (o *nsqBenchOptions) measure(benchmark nsqBenchmark) (round, error) {
	if benchmark.filled {
		if err := o.fill(); err != nil {
			return round{}, err
		}
	}
	began := time.Now()
	queue := o.open()
	queue.Depth() // answered by the worker: it runs, and has its first message ready
	opened := time.Since(began)
	measured, err := benchmark.run(queue, *o)
	measured.OpenSeconds = opened.Seconds()
	if err := errors.Join(err, queue.Close()); err != nil {
		return measured, err
	}
	measured.Warnings = queue.complaints()
	for _, file := range o.files() {
		if err := os.Remove(file); err != nil {
			return measured, err
		}
	}
	return measured, nil
}

func (o *nsqBenchOptions) fill() error {
	queue := o.open()
	return errors.Join(produce(queue, *o), queue.Close())
}

// --- the work -----------------------------------------------------------------------------------

func benchPut(queue *nsqQueue, options nsqBenchOptions) (round, error) {
	watch := startWatch()
	err := produce(queue, options)
	return watch.stop(options.count), err
}

func benchGet(queue *nsqQueue, options nsqBenchOptions) (round, error) {
	watch := startWatch()
	consume(queue, options)
	return watch.stop(options.count), nil
}

func benchPutGet(queue *nsqQueue, options nsqBenchOptions) (round, error) {
	consumed := make(chan struct{})
	watch := startWatch()
	go func() {
		consume(queue, options)
		close(consumed)
	}()
	if err := produce(queue, options); err != nil {
		return round{}, err
	}
	<-consumed
	return watch.stop(options.count), nil
}

// produce puts count messages from all producers and waits for the last answer.
func produce(queue *nsqQueue, options nsqBenchOptions) error {
	body := bodyOf(options.size)
	results := make(chan error, options.producers)
	for _, share := range shares(options.count, options.producers) {
		share := share
		go func() {
			for i := 0; i < share; i++ {
				if err := queue.Put(body); err != nil {
					results <- err
					return
				}
			}
			results <- nil
		}()
	}
	var err error
	for i := 0; i < options.producers; i++ {
		err = errors.Join(err, <-results)
	}
	return err
}

// consume receives count messages. Each consumer has its share, so that it can wait on the
// channel alone: a select on a second one would be billed to go-diskqueue.
func consume(queue *nsqQueue, options nsqBenchOptions) {
	var all sync.WaitGroup
	for _, share := range shares(options.count, options.consumers) {
		share := share
		all.Add(1)
		go func() {
			defer all.Done()
			for i := 0; i < share; i++ {
				<-queue.ReadChan()
			}
		}()
	}
	all.Wait()
}

// benchLatency has one message under way at a time: put in this goroutine, received in another,
// and the next put only after that. Rate and seconds include the pauses of --pace.
func benchLatency(queue *nsqQueue, options nsqBenchOptions) (round, error) {
	const warmUp = 100
	body := bodyOf(options.size)
	received := make(chan time.Time)
	go func() {
		for i := 0; i < warmUp+options.count; i++ {
			<-queue.ReadChan()
			received <- time.Now()
		}
	}()
	once := func() (time.Duration, error) {
		time.Sleep(options.pace)
		began := time.Now()
		if err := queue.Put(body); err != nil {
			return 0, err
		}
		return (<-received).Sub(began), nil
	}
	for i := 0; i < warmUp; i++ {
		if _, err := once(); err != nil {
			return round{}, err
		}
	}
	latencies := make([]time.Duration, options.count)
	watch := startWatch()
	for i := range latencies {
		latency, err := once()
		if err != nil {
			return round{}, err
		}
		latencies[i] = latency
	}
	measured := watch.stop(options.count)
	measured.quantiles = quantilesOf(latencies)
	return measured, nil
}

func bodyOf(size int) []byte {
	body := make([]byte, size)
	for i := range body {
		body[i] = byte('a' + i%26)
	}
	return body
}
