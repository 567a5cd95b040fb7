// What Read, the Consumer and GetOffsetAfter call on a partition that is complete.

package main

import (
	"errors"
	"io"
	"math/rand"
	"os"
	"time"
)

// read: a message is a read of its index row and one of its record; a segment, two opens and the
// read that finds the end of its index.
func read(o options) (measured, error) {
	directory, segments, err := fill(o, o.count)
	if err != nil {
		return measured{}, err
	}
	row, record := make([]byte, indexRow), make([]byte, o.record)
	watch := startWatch()
	if _, err = os.ReadDir(directory); err != nil {
		return measured{}, err
	}
	for _, segment := range segments {
		index, data, err := openBoth(directory, segment.base)
		if err != nil {
			return measured{}, err
		}
		for i := 0; i < segment.count; i++ {
			if err = errors.Join(readAll(index, row), readAll(data, record)); err != nil {
				return measured{}, err
			}
		}
		if _, err = index.Read(row); err != io.EOF {
			return measured{}, errors.New("an index goes on past its end")
		}
	}
	return watch.stop(o.count), nil
}

// consume: a message is stat, seek and read of the index, a read of the data, and its hand-over to another
// goroutine over a channel without a buffer, in a select as there; in the last segment, the one that may still
// grow, a stat of the data, too. A segment is a stat and a seek that find the end of its index, a listing of
// the directory, two closes and two opens.
func consume(o options) (measured, error) {
	directory, segments, err := fill(o, o.count)
	if err != nil {
		return measured{}, err
	}
	messages, done, result := make(chan []byte), make(chan struct{}), make(chan error, 1)
	watch := startWatch()
	go func() {
		defer close(messages)
		result <- deliver(directory, segments, o.record, messages, done)
	}()
	count := 0
	for range messages {
		count++
	}
	if err = <-result; err == nil && count != o.count {
		err = errors.New("messages were lost")
	}
	return watch.stop(o.count), err
}

func deliver(directory string, segments []filled, size int, messages chan<- []byte, done <-chan struct{}) error {
	row, record := make([]byte, indexRow), make([]byte, size)
	for number, segment := range segments {
		isActive := number == len(segments)-1
		if _, err := os.ReadDir(directory); err != nil {
			return err
		}
		index, data, err := openBoth(directory, segment.base)
		if err != nil {
			return err
		}
		for i := 0; i < segment.count; i++ {
			if _, err := statAndSeek(index); err != nil {
				return err
			}
			if err := readAll(index, row); err != nil {
				return err
			}
			if err := readRecord(data, record, isActive); err != nil {
				return err
			}
			select {
			case <-done:
				return nil
			case messages <- record:
			}
		}
		if _, err := statAndSeek(index); err != nil {
			return err
		}
		if err := errors.Join(index.Close(), data.Close()); err != nil {
			return err
		}
	}
	return nil
}

// readRecord asks for the size of the data only where it may be behind the index.
func readRecord(data *os.File, record []byte, isActive bool) error {
	if isActive {
		if _, err := data.Stat(); err != nil {
			return err
		}
	}
	return readAll(data, record)
}

// statAndSeek returns how many bytes there are to read.
func statAndSeek(file *os.File) (int64, error) {
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	at, err := file.Seek(0, io.SeekCurrent)
	return info.Size() - at, err
}

func openBoth(directory string, base int) (index, data *os.File, err error) {
	if index, err = openForRead(directory, base, "index"); err != nil {
		return
	}
	data, err = openForRead(directory, base, "data")
	return
}

// lookup: GetOffsetAfter of a random moment in a partition of a million messages. A listing of the
// directory; of each timeindex up to the one that is searched, open, stat, a seek to the last row,
// its read, close; of that one, open, stat, seek and read of the first row and of the last, a seek
// and a read for each halving, close. What a row says is not looked at: where the search ends is drawn.
func lookup(o options) (measured, error) {
	const messages = 1_000_000
	directory, segments, err := fill(o, messages)
	if err != nil {
		return measured{}, err
	}
	draw := rand.New(rand.NewSource(1))
	once := func() (time.Duration, error) {
		wanted := draw.Intn(messages)
		began := time.Now()
		err := search(directory, segments, wanted)
		return time.Since(began), err
	}
	took := make([]time.Duration, o.count)
	watch := startWatch()
	for i := range took {
		if took[i], err = once(); err != nil {
			return measured{}, err
		}
	}
	found := watch.stop(o.count)
	found.quantiles = quantilesOf(took)
	return found, nil
}

func search(directory string, segments []filled, wanted int) error {
	if _, err := os.ReadDir(directory); err != nil {
		return err
	}
	row := make([]byte, timeIndexRow)
	for _, segment := range segments {
		file, err := openForRead(directory, segment.base, "timeindex")
		if err != nil {
			return err
		}
		_, err = file.Stat()
		if err = errors.Join(err, readAt(file, -timeIndexRow, io.SeekEnd, row), file.Close()); err != nil {
			return err
		}
		if wanted < segment.base+segment.count {
			return halve(directory, segment, wanted, row)
		}
	}
	return errors.New("past the last segment")
}

func halve(directory string, segment filled, wanted int, row []byte) error {
	file, err := openForRead(directory, segment.base, "timeindex")
	if err != nil {
		return err
	}
	_, err = file.Stat()
	err = errors.Join(err, readAt(file, 0, io.SeekStart, row), readAt(file, -timeIndexRow, io.SeekEnd, row))
	least, most := segment.base, segment.base+segment.count-1
	for least < most && err == nil {
		middle := (least + most) / 2
		err = readAt(file, int64(middle-segment.base)*timeIndexRow, io.SeekStart, row)
		if middle < wanted {
			least = middle + 1
		} else {
			most = middle
		}
	}
	return errors.Join(err, file.Close())
}

func readAt(file *os.File, position int64, whence int, row []byte) error {
	if _, err := file.Seek(position, whence); err != nil {
		return err
	}
	return readAll(file, row)
}
