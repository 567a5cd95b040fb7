// Frames. Law: a message on stdin, stdout or in an --out file is its length (u32, big endian)
// and its bytes; the stream ends between two frames.

package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
)

const frameBuffer = 1 << 20

type frameReader struct{ from *bufio.Reader }

func newFrameReader(from io.Reader) frameReader {
	return frameReader{bufio.NewReaderSize(from, frameBuffer)}
}

// next is io.EOF at the end of the stream, and another error inside a frame.
func (r frameReader) next() ([]byte, error) {
	var header [4]byte
	if _, err := io.ReadFull(r.from, header[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, errors.New("the stream ends inside a frame's length")
		}
		return nil, err
	}
	size := binary.BigEndian.Uint32(header[:])
	if size > math.MaxInt32 {
		return nil, fmt.Errorf("a frame of %d bytes: at most %d", size, math.MaxInt32)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r.from, body); err != nil {
		return nil, fmt.Errorf("the stream ends inside a frame of %d bytes", size)
	}
	return body, nil
}

// A frameWriter writes to a file, or to stdout where the path is empty.
type frameWriter struct {
	file *os.File
	to   *bufio.Writer
}

func newFrameWriter(path string) (*frameWriter, error) {
	file := os.Stdout
	if path != "" {
		var err error
		if file, err = os.Create(path); err != nil {
			return nil, err
		}
	}
	return &frameWriter{file, bufio.NewWriterSize(file, frameBuffer)}, nil
}

func (w *frameWriter) write(body []byte) error {
	var header [4]byte
	binary.BigEndian.PutUint32(header[:], uint32(len(body)))
	if _, err := w.to.Write(header[:]); err != nil {
		return err
	}
	_, err := w.to.Write(body)
	return err
}

func (w *frameWriter) close() error {
	if err := w.to.Flush(); err != nil {
		return err
	}
	return w.file.Close()
}
