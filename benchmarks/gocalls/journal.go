// What sej's writer and scanner call, for a journal of one file.

package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// The writer's buffer, and the scanner's.
const (
	writeBuffer = 4096
	readBuffer  = 64 << 10
)

func journalPath(o options) string {
	return filepath.Join(o.dir, "0000000000000000.jnl")
}

// append: Append alone. Messages are copied into a buffer of 4 KiB, which is written when it is full: a
// write for so many messages, and none of them is in the page cache when its Append returns.
func bufferedAppend(o options) (measured, error) {
	file, err := os.OpenFile(journalPath(o), os.O_RDWR|os.O_CREATE, 0644)
	if err != nil {
		return measured{}, err
	}
	buffer, record, used := make([]byte, writeBuffer), make([]byte, o.record), 0
	watch := startWatch()
	for i := 0; i < o.count; i++ {
		for left := record; len(left) > 0; {
			copied := copy(buffer[used:], left)
			used, left = used+copied, left[copied:]
			if used == writeBuffer {
				if _, err = file.Write(buffer); err != nil {
					return measured{}, err
				}
				used = 0
			}
		}
	}
	return watch.stop(o.count), errors.Join(err, file.Close())
}

// flush: Append and Flush, a write for each message; with sync, and an fsync. The writer is locked in each.
func appendAndFlush(o options) (measured, error) {
	file, err := os.OpenFile(journalPath(o), os.O_RDWR|os.O_CREATE, 0644)
	if err != nil {
		return measured{}, err
	}
	var lock sync.Mutex
	under := func(act func() error) error {
		lock.Lock()
		defer lock.Unlock()
		return act()
	}
	produce := func(count int) error {
		record := make([]byte, o.record)
		for i := 0; i < count; i++ {
			if err := under(func() error { _, err := file.Write(record); return err }); err != nil {
				return err
			}
			if o.sync {
				if err := under(file.Sync); err != nil {
					return err
				}
			}
		}
		return nil
	}
	results := make(chan error, o.producers)
	watch := startWatch()
	for producer := 0; producer < o.producers; producer++ {
		share := o.count / o.producers
		if producer < o.count%o.producers {
			share++
		}
		go func() { results <- produce(share) }()
	}
	for producer := 0; producer < o.producers; producer++ {
		err = errors.Join(err, <-results)
	}
	return watch.stop(o.count), errors.Join(err, file.Close())
}

// scan: the Scanner's reads, of 64 KiB each.
func scan(o options) (measured, error) {
	if err := os.WriteFile(journalPath(o), make([]byte, o.count*o.record), 0644); err != nil {
		return measured{}, err
	}
	buffer := make([]byte, readBuffer)
	watch := startWatch()
	file, err := os.Open(journalPath(o))
	for err == nil {
		_, err = file.Read(buffer)
	}
	if err != io.EOF {
		return measured{}, err
	}
	return watch.stop(o.count), file.Close()
}
