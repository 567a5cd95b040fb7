// Measuring: the same figures as the benchmarks of go-diskqueue report, by the same means.

package main

import (
	"math"
	"runtime"
	"sort"
	"syscall"
	"time"
)

type measured struct {
	Seconds    float64 `json:"seconds"`
	Rate       float64 `json:"rate"`
	CPUSeconds float64 `json:"cpu_seconds"`
	*quantiles
}

// In microseconds.
type quantiles struct {
	P50 float64 `json:"p50_us"`
	P90 float64 `json:"p90_us"`
	P99 float64 `json:"p99_us"`
	Max float64 `json:"max_us"`
}

// A stopwatch is started with the heap clean, so that what came before is not billed here.
type stopwatch struct {
	wall time.Time
	cpu  float64
}

func startWatch() stopwatch {
	runtime.GC()
	return stopwatch{time.Now(), cpuSeconds()}
}

func (w stopwatch) stop(count int) measured {
	seconds := time.Since(w.wall).Seconds()
	return measured{Seconds: seconds, Rate: float64(count) / seconds, CPUSeconds: cpuSeconds() - w.cpu}
}

// cpuSeconds is what this process has used, user and system, all threads.
func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err) // cannot happen: the arguments are constants
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

// quantilesOf takes the nearest rank; the slice is sorted in place and must not be empty.
func quantilesOf(took []time.Duration) *quantiles {
	sort.Slice(took, func(i, j int) bool { return took[i] < took[j] })
	at := func(q float64) float64 {
		return float64(took[int(math.Ceil(q*float64(len(took))))-1].Nanoseconds()) / 1e3
	}
	return &quantiles{P50: at(0.50), P90: at(0.90), P99: at(0.99), Max: at(1)}
}
