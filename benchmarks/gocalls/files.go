// The files of a partition: named, made, opened and listed as go-diskq does.

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// Bytes of a row. A row is written and read by itself.
const (
	indexRow     = 24
	timeIndexRow = 16
)

func directoryOf(dir string, partition int) string {
	return filepath.Join(dir, "parts", fmt.Sprintf("%06d", partition))
}

func pathOf(directory string, base int, extension string) string {
	return filepath.Join(directory, fmt.Sprintf("%020d.%s", base, extension))
}

// A segment that is written to.
type segment struct {
	base, count            int
	data, index, timeIndex *os.File
}

func createSegment(directory string, base int) (*segment, error) {
	s := &segment{base: base}
	var err error
	if s.data, err = create(directory, base, "data"); err != nil {
		return nil, err
	}
	if s.index, err = create(directory, base, "index"); err != nil {
		return nil, err
	}
	s.timeIndex, err = create(directory, base, "timeindex")
	return s, err
}

func create(directory string, base int, extension string) (*os.File, error) {
	return os.OpenFile(pathOf(directory, base, extension), os.O_RDWR|os.O_CREATE, 0644)
}

func openForRead(directory string, base int, extension string) (*os.File, error) {
	return os.Open(pathOf(directory, base, extension))
}

// A segment that was filled before the clock runs.
type filled struct{ base, count int }

// fill makes partition 0 of so many messages.
func fill(o options, count int) (directory string, segments []filled, err error) {
	directory = directoryOf(o.dir, 0)
	if err = os.MkdirAll(directory, 0755); err != nil {
		return
	}
	inEach := (o.segmentSize + o.record - 1) / o.record
	for base := 0; base < count; base += inEach {
		held := min(inEach, count-base)
		for extension, width := range map[string]int{"data": o.record, "index": indexRow, "timeindex": timeIndexRow} {
			content := bytes.Repeat([]byte("a"), width*held)
			if err = os.WriteFile(pathOf(directory, base, extension), content, 0644); err != nil {
				return
			}
		}
		segments = append(segments, filled{base, held})
	}
	return
}

func readAll(file *os.File, row []byte) error {
	read, err := file.Read(row)
	if err == nil && read != len(row) {
		err = fmt.Errorf("%s: %d bytes where there are %d", file.Name(), read, len(row))
	}
	return err
}
