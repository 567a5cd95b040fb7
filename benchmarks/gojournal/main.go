// Gojournal writes and scans journals of sej's format: of our own writing, as docs/format/sej.md has them.
//
//	gojournal append|scan --dir DIR --count N
//
// Law: the least that a program in Go does for a message in these files. append copies each into a
// buffer of 4 KiB, under a lock, which is written when it is full; scan reads 64 KiB at a time, looks at every
// length and offset, and makes a fresh value of each message. There is one file, no waiting, no rolling,
// no options: sej has those, and does not do its work in less.
//
// scan reads the journal that lies in DIR, and makes one where there is none. The clock runs over the
// messages alone. One JSON object on one line; errors are one line on stderr, with exit code 1.
package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
)

const (
	writeBuffer = 4096
	readBuffer  = 64 << 10
	fixed       = 26 // bytes of a message without its key and its value
	beforeKey   = 18
)

type message struct {
	offset    uint64
	timestamp int64
	kind      byte
	key       []byte // reused by the next message
	value     []byte // its own
}

var errCorrupt = errors.New("lengths or offsets that do not agree")

// --- writing ------------------------------------------------------------------------------------------------

type writer struct {
	sync.Mutex
	file   *os.File
	buffer *bufio.Writer
	next   uint64
	made   []byte // the message, before it is copied into the buffer
}

func openWriter(path string) (*writer, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0644)
	if err != nil {
		return nil, err
	}
	return &writer{file: file, buffer: bufio.NewWriterSize(file, writeBuffer)}, nil
}

func (w *writer) append(m *message) error {
	w.Lock()
	defer w.Unlock()
	m.offset = w.next
	made := binary.BigEndian.AppendUint64(w.made[:0], m.offset)
	made = binary.BigEndian.AppendUint64(made, uint64(m.timestamp))
	made = append(made, m.kind, byte(len(m.key)))
	made = append(made, m.key...)
	made = binary.BigEndian.AppendUint32(made, uint32(len(m.value)))
	made = append(made, m.value...)
	w.made = binary.BigEndian.AppendUint32(made, uint32(fixed+len(m.key)+len(m.value)))
	_, err := w.buffer.Write(w.made)
	w.next++
	return err
}

func (w *writer) close() error {
	return errors.Join(w.buffer.Flush(), w.file.Close())
}

func fill(path string, count int) (took, error) {
	w, err := openWriter(path)
	if err != nil {
		return took{}, err
	}
	m := message{timestamp: 1, key: []byte("user-042"), value: make([]byte, 100)}
	watch := begin()
	for i := 0; i < count && err == nil; i++ {
		err = w.append(&m)
	}
	found := watch.stop(count)
	return found, errors.Join(err, w.close())
}

// --- scanning -----------------------------------------------------------------------------------------------

type scanner struct {
	from *bufio.Reader
	next uint64
	message
}

// io.EOF between two messages.
func (s *scanner) scan() error {
	head, err := s.from.Peek(beforeKey)
	if err != nil {
		if len(head) > 0 {
			return whole(err)
		}
		return err
	}
	s.offset = binary.BigEndian.Uint64(head)
	s.timestamp = int64(binary.BigEndian.Uint64(head[8:]))
	s.kind = head[16]
	key := int(int8(head[17]))
	if key < 0 || s.offset != s.next {
		return errCorrupt
	}
	if head, err = s.from.Peek(beforeKey + key + 4); err != nil {
		return whole(err)
	}
	s.key = append(s.key[:0], head[beforeKey:beforeKey+key]...)
	length := int(int32(binary.BigEndian.Uint32(head[beforeKey+key:])))
	if length < 0 {
		return errCorrupt
	}
	s.from.Discard(len(head))
	s.value = make([]byte, length)
	if _, err = io.ReadFull(s.from, s.value); err != nil {
		return whole(err)
	}
	size, err := s.from.Peek(4)
	if err != nil {
		return whole(err)
	}
	if int(binary.BigEndian.Uint32(size)) != fixed+key+length {
		return errCorrupt
	}
	s.from.Discard(4)
	s.next++
	return nil
}

func whole(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

func scan(path string, count int) (took, error) {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		if _, err := fill(path, count); err != nil {
			return took{}, err
		}
	}
	file, err := os.Open(path)
	if err != nil {
		return took{}, err
	}
	defer file.Close()
	s := scanner{from: bufio.NewReaderSize(file, readBuffer)}
	watch := begin()
	for err = s.scan(); err == nil; err = s.scan() {
	}
	found := watch.stop(count)
	if err == io.EOF && int(s.next) != count {
		err = fmt.Errorf("%d messages instead of %d", s.next, count)
	}
	if err == io.EOF {
		err = nil
	}
	return found, err
}

// --- measuring ----------------------------------------------------------------------------------------------

type took struct {
	Seconds    float64 `json:"seconds"`
	Rate       float64 `json:"rate"`
	CPUSeconds float64 `json:"cpu_seconds"`
}

type watch struct {
	began time.Time
	cpu   float64
}

func begin() watch {
	runtime.GC()
	return watch{time.Now(), cpuSeconds()}
}

func (w watch) stop(count int) took {
	seconds := time.Since(w.began).Seconds()
	return took{seconds, float64(count) / seconds, cpuSeconds() - w.cpu}
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

type report struct {
	Go    string `json:"go"`
	Act   string `json:"act"`
	Count int    `json:"count"`
	took
}

func run(args []string) error {
	acts := map[string]func(string, int) (took, error){"append": fill, "scan": scan}
	if len(args) == 0 || acts[args[0]] == nil {
		return errors.New("say what to do: append or scan")
	}
	flags := flag.NewFlagSet("gojournal", flag.ContinueOnError)
	directory := flags.String("dir", "", "of the journal")
	count := flags.Int("count", 100_000, "messages")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if *directory == "" || *count < 1 {
		return errors.New("--dir is needed, --count starts at 1")
	}
	files := filepath.Join(*directory, "jnl")
	if err := os.MkdirAll(files, 0755); err != nil {
		return err
	}
	found, err := acts[args[0]](filepath.Join(files, "0000000000000000.jnl"), *count)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(report{runtime.Version(), args[0], *count, found})
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gojournal: "+err.Error())
		os.Exit(1)
	}
}
