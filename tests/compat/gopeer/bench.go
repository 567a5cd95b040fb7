// Measuring. Law: the clock runs over the work alone; opening, filling and closing are outside.
// What every peer's benchmark needs is here; what is measured is in the peer's own file.

package main

import (
	"math"
	"runtime"
	"sort"
	"syscall"
	"time"
)

// A round is one measured stretch on one freshly opened queue, and what the peer logged meanwhile.
type round struct {
	OpenSeconds float64 `json:"open_seconds"`
	Seconds     float64 `json:"seconds"`
	Rate        float64 `json:"rate"`
	CPUSeconds  float64 `json:"cpu_seconds"`
	*quantiles
	Warnings []string `json:"warnings"` // a number with any of these asks for a look
}

// In microseconds.
type quantiles struct {
	P50 float64 `json:"p50_us"`
	P90 float64 `json:"p90_us"`
	P99 float64 `json:"p99_us"`
	Max float64 `json:"max_us"`
}

// A benchReport is the round with the median duration, what was asked for, and all rounds.
type benchReport struct {
	Peer       string `json:"peer"`
	Go         string `json:"go"`
	GoMaxProcs int    `json:"gomaxprocs"`
	Bench      string `json:"bench"`
	Count      int    `json:"count"`
	Size       int    `json:"size"`
	round
	Options map[string]any `json:"options"`
	Rounds  []round        `json:"rounds"`
}

func newBenchReport(peer, bench string, count, size int, options map[string]any, rounds []round) benchReport {
	byTime := append([]round(nil), rounds...)
	sort.Slice(byTime, func(i, j int) bool { return byTime[i].Seconds < byTime[j].Seconds })
	return benchReport{
		Peer: peer, Go: runtime.Version(), GoMaxProcs: runtime.GOMAXPROCS(0),
		Bench: bench, Count: count, Size: size,
		round: byTime[(len(byTime)-1)/2], Options: options, Rounds: rounds,
	}
}

// A stopwatch is started with the heap clean, so that what came before is not billed here.
type stopwatch struct {
	wall time.Time
	cpu  float64
}

func startWatch() stopwatch {
	runtime.GC()
	return stopwatch{wall: time.Now(), cpu: cpuSeconds()}
}

func (w stopwatch) stop(count int) round {
	seconds := time.Since(w.wall).Seconds()
	return round{Seconds: seconds, Rate: float64(count) / seconds, CPUSeconds: cpuSeconds() - w.cpu}
}

// cpuSeconds is what this process has used, user and system, all threads.
func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err) // cannot happen: the arguments are constants
	}
	return seconds(usage.Utime) + seconds(usage.Stime)
}

func seconds(t syscall.Timeval) float64 {
	return float64(t.Sec) + float64(t.Usec)/1e6
}

// quantilesOf takes the nearest rank; the slice is sorted in place and must not be empty.
func quantilesOf(latencies []time.Duration) *quantiles {
	sort.Slice(latencies, func(i, j int) bool { return latencies[i] < latencies[j] })
	at := func(q float64) float64 {
		rank := int(math.Ceil(q*float64(len(latencies)))) - 1
		return float64(latencies[rank].Nanoseconds()) / 1e3
	}
	return &quantiles{P50: at(0.50), P90: at(0.90), P99: at(0.99), Max: at(1)}
}

// shares splits count into n parts that differ by at most one.
func shares(count, n int) []int {
	parts := make([]int, n)
	for i := range parts {
		parts[i] = count / n
		if i < count%n {
			parts[i]++
		}
	}
	return parts
}
