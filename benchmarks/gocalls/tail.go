// What lies between Push and the message at the Consumer's other end: the three writes; an inotify event for
// each of them, of which the index's is the last; stat, seek and read of the index, stat and read of the data;
// one hand-over between goroutines over a channel without a buffer. (go-diskq hands the event on twice before
// it reads. That is not counted here.)

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

// A tail reads what is written to the only segment of partition 0, when inotify tells of it.
type tail struct {
	events, index, data *os.File
	indexName           []byte
	buffer, row, record []byte
}

func openTail(o options) (*tail, error) {
	directory := directoryOf(o.dir, 0)
	// Not blocking, so that a goroutine waits for it in the runtime's poller, as fsnotify's does.
	handle, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	t := &tail{
		events:    os.NewFile(uintptr(handle), "inotify"),
		indexName: []byte(filepath.Base(pathOf(directory, 0, "index"))),
		buffer:    make([]byte, 64*1024),
		row:       make([]byte, indexRow),
		record:    make([]byte, o.record),
	}
	if _, err = syscall.InotifyAddWatch(handle, directory, syscall.IN_CREATE|syscall.IN_MODIFY); err != nil {
		return nil, err
	}
	t.index, t.data, err = openBoth(directory, 0)
	return t, err
}

// next waits for one more message. The record is the next one's buffer, too. The index is asked twice before
// the wait, and after each event.
func (t *tail) next() ([]byte, error) {
	left, err := statAndSeek(t.index)
	for asked := 1; err == nil && left < indexRow; asked++ {
		if asked > 1 {
			err = t.waitForIndex()
		}
		if err == nil {
			left, err = statAndSeek(t.index)
		}
	}
	if err != nil {
		return nil, err
	}
	if err := readAll(t.index, t.row); err != nil {
		return nil, err
	}
	return t.record, readRecord(t.data, t.record, true)
}

func (t *tail) waitForIndex() error {
	for {
		read, err := t.events.Read(t.buffer)
		if err != nil {
			return err
		}
		for at := 0; at < read; {
			event := (*syscall.InotifyEvent)(unsafe.Pointer(&t.buffer[at]))
			name := t.buffer[at+syscall.SizeofInotifyEvent:][:event.Len]
			if bytes.Equal(bytes.TrimRight(name, "\x00"), t.indexName) {
				return nil
			}
			at += syscall.SizeofInotifyEvent + int(event.Len)
		}
	}
}

// A delivery is what a message's receiver gets.
type delivery struct {
	record []byte
	err    error
}

// follow hands over what comes, until it fails.
func (t *tail) follow(receiver chan<- delivery) {
	for {
		record, err := t.next()
		receiver <- delivery{record, err}
		if err != nil {
			return
		}
	}
}

// latency: from before the first write until another goroutine of this process has the message.
func latency(o options) (measured, error) {
	target, receiver, err := startTail(o)
	if err != nil {
		return measured{}, err
	}
	bytes := rowsOf(o)
	return oneAtATime(o, func() (time.Duration, error) {
		began := time.Now()
		if err := target.push(bytes); err != nil {
			return 0, err
		}
		delivered := <-receiver
		return time.Since(began), delivered.err
	})
}

// across: the same, with the writes in another process, which stamps its records with the time.
func across(o options) (measured, error) {
	target, receiver, err := startTail(o)
	if err != nil {
		return measured{}, err
	}
	other := exec.Command(os.Args[0], "pushes", "--dir", o.dir, "--record", strconv.Itoa(o.record))
	other.Stderr = os.Stderr
	ask, err := other.StdinPipe()
	if err != nil {
		return measured{}, err
	}
	if err = errors.Join(target.close(), other.Start()); err != nil {
		return measured{}, err
	}
	found, err := oneAtATime(o, func() (time.Duration, error) {
		if _, err := ask.Write([]byte("1")); err != nil {
			return 0, err
		}
		delivered := <-receiver
		return time.Duration(now() - int64(binary.LittleEndian.Uint64(delivered.record))), delivered.err
	})
	return found, errors.Join(err, ask.Close(), other.Wait())
}

// pushWhenAsked is the other process of across: a message for each byte that comes.
func pushWhenAsked(o options, asked io.Reader) error {
	target, err := createPartition(o, 0)
	if err != nil {
		return err
	}
	bytes, one := rowsOf(o), make([]byte, 1)
	for {
		if _, err := io.ReadFull(asked, one); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		binary.LittleEndian.PutUint64(bytes.data, uint64(now()))
		if err := target.push(bytes); err != nil {
			return err
		}
	}
}

// startTail makes partition 0 and follows it.
func startTail(o options) (*partition, <-chan delivery, error) {
	target, err := createPartition(o, 0)
	if err != nil {
		return nil, nil, err
	}
	t, err := openTail(o)
	receiver := make(chan delivery)
	if err == nil {
		go t.follow(receiver)
	}
	return target, receiver, err
}

func oneAtATime(o options, once func() (time.Duration, error)) (measured, error) {
	const warmUp = 100
	took := make([]time.Duration, o.count)
	watch := stopwatch{}
	for i := -warmUp; i < o.count; i++ {
		if i == 0 {
			watch = startWatch()
		}
		time.Sleep(o.pace)
		passed, err := once()
		if err != nil {
			return measured{}, err
		}
		took[max(i, 0)] = passed
	}
	found := watch.stop(o.count)
	found.quantiles = quantilesOf(took)
	return found, nil
}

// now is a clock that two processes share, in nanoseconds.
func now() int64 { return time.Now().UnixNano() }
