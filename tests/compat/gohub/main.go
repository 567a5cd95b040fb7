// The hub of sej's protocol in Go, from the proto alone: a client and a server, for tests and benchmarks.
//
//	gohub put --addr HOST:PORT --client ID --journal NAME --from N --count N --batch N --size N
//	gohub get --addr HOST:PORT --client ID --journal NAME --offset N
//	gohub serve --root DIR           prints its address, serves until its stdin ends
//
// Messages are encoded by hand (protowire); every journal is one file in sej's format, and every Put is
// written and synced before it is answered.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

const nullTime = -1 << 63

type message struct {
	Offset    uint64 `json:"offset"`
	Timestamp int64  `json:"timestamp"`
	Type      uint32 `json:"type"`
	Key       []byte `json:"key"`
	Value     []byte `json:"value"`
}

// --- the wire

type raw struct{}

func (raw) Name() string { return "proto" }
func (raw) Marshal(v any) ([]byte, error) {
	return *v.(*[]byte), nil
}
func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func appendMessage(out []byte, number protowire.Number, m *message) []byte {
	var b []byte
	if m.Offset != 0 {
		b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.VarintType), m.Offset)
	}
	if m.Timestamp != 0 {
		b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), uint64(m.Timestamp))
	}
	if m.Type != 0 {
		b = protowire.AppendVarint(protowire.AppendTag(b, 3, protowire.VarintType), uint64(m.Type))
	}
	if len(m.Key) > 0 {
		b = protowire.AppendBytes(protowire.AppendTag(b, 4, protowire.BytesType), m.Key)
	}
	if len(m.Value) > 0 {
		b = protowire.AppendBytes(protowire.AppendTag(b, 5, protowire.BytesType), m.Value)
	}
	return protowire.AppendBytes(protowire.AppendTag(out, number, protowire.BytesType), b)
}

func request(client, journal string) []byte {
	b := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), client)
	return protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), journal)
}

// fields calls back with each field: its number, and its number or its bytes.
func fields(data []byte, each func(protowire.Number, uint64, []byte) error) error {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		var value uint64
		var content []byte
		switch kind {
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(data)
		case protowire.BytesType:
			content, n = protowire.ConsumeBytes(data)
		default:
			n = protowire.ConsumeFieldValue(number, kind, data)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		if err := each(number, value, content); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

func parseMessage(data []byte) (*message, error) {
	m := &message{}
	err := fields(data, func(number protowire.Number, value uint64, content []byte) error {
		switch number {
		case 1:
			m.Offset = value
		case 2:
			m.Timestamp = int64(value)
		case 3:
			m.Type = uint32(value)
		case 4:
			m.Key = content
		case 5:
			m.Value = content
		}
		return nil
	})
	return m, err
}

type asked struct {
	client, journal string
	offset          uint64
	messages        []*message
}

func parse(data []byte, ofMessages protowire.Number) (*asked, error) {
	a := &asked{}
	err := fields(data, func(number protowire.Number, value uint64, content []byte) error {
		if number == ofMessages {
			m, err := parseMessage(content)
			a.messages = append(a.messages, m)
			return err
		}
		switch number {
		case 1:
			a.client = string(content)
		case 2:
			a.journal = string(content)
		case 3:
			a.offset = value
		}
		return nil
	})
	return a, err
}

// --- the server

type journal struct {
	sync.Mutex
	file *os.File
	next uint64
}

type server struct {
	sync.Mutex
	root     string
	journals map[string]*journal
}

func (s *server) journal(name string) (*journal, error) {
	s.Lock()
	defer s.Unlock()
	if j := s.journals[name]; j != nil {
		return j, nil
	}
	directory := filepath.Join(s.root, name, "jnl")
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return nil, err
	}
	path := filepath.Join(directory, "0000000000000000.jnl")
	data, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	found, end := records(data)
	if err := file.Truncate(int64(end)); err != nil {
		return nil, err
	}
	if _, err := file.Seek(int64(end), io.SeekStart); err != nil {
		return nil, err
	}
	s.journals[name] = &journal{file: file, next: uint64(len(found))}
	return s.journals[name], nil
}

func records(data []byte) (found []*message, end int) {
	for at := 0; ; {
		if len(data)-at < 18 {
			return found, at
		}
		m := &message{Offset: binary.BigEndian.Uint64(data[at:]), Type: uint32(data[at+16])}
		m.Timestamp = int64(binary.BigEndian.Uint64(data[at+8:]))
		keyEnd := at + 18 + int(data[at+17])
		if len(data) < keyEnd+4 {
			return found, at
		}
		valueEnd := keyEnd + 4 + int(binary.BigEndian.Uint32(data[keyEnd:]))
		if len(data) < valueEnd+4 {
			return found, at
		}
		m.Key, m.Value = data[at+18:keyEnd], data[keyEnd+4:valueEnd]
		found = append(found, m)
		at = valueEnd + 4
	}
}

func appendRecord(b []byte, m *message) []byte {
	b = binary.BigEndian.AppendUint64(b, m.Offset)
	b = binary.BigEndian.AppendUint64(b, uint64(m.Timestamp))
	b = append(b, byte(m.Type), byte(len(m.Key)))
	b = append(b, m.Key...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(m.Value)))
	b = append(b, m.Value...)
	return binary.BigEndian.AppendUint32(b, uint32(26+len(m.Key)+len(m.Value)))
}

func (s *server) put(data []byte) ([]byte, error) {
	a, err := parse(data, 3)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	j, err := s.journal(a.client + "." + a.journal)
	if err != nil {
		return nil, err
	}
	j.Lock()
	defer j.Unlock()
	var out []byte
	next := j.next
	for _, m := range a.messages {
		if m.Offset > next {
			return nil, status.Errorf(codes.FailedPrecondition, "%d comes, %d is next", m.Offset, next)
		}
		if m.Offset == next {
			out = appendRecord(out, m)
			next++
		}
	}
	if _, err := j.file.Write(out); err != nil {
		return nil, err
	}
	if err := j.file.Sync(); err != nil {
		return nil, err
	}
	j.next = next
	return nil, nil
}

func (s *server) get(data []byte) ([]byte, error) {
	a, err := parse(data, 0)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	content, err := os.ReadFile(filepath.Join(s.root, a.client+"."+a.journal, "jnl", "0000000000000000.jnl"))
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	found, _ := records(content)
	var out []byte
	for _, m := range found {
		if m.Offset >= a.offset && len(out) < 1<<20 {
			out = appendMessage(out, 1, m)
		}
	}
	return out, nil
}

func handler(act func(*server, []byte) ([]byte, error)) grpc.MethodHandler {
	return func(srv any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var data []byte
		if err := decode(&data); err != nil {
			return nil, err
		}
		out, err := act(srv.(*server), data)
		return &out, err
	}
}

func serve(root string) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	g := grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.MaxRecvMsgSize(1<<30))
	g.RegisterService(&grpc.ServiceDesc{
		ServiceName: "hub.Hub",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			{MethodName: "Put", Handler: handler((*server).put)},
			{MethodName: "Get", Handler: handler((*server).get)},
		},
	}, &server{root: root, journals: map[string]*journal{}})
	fmt.Println(listener.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		g.GracefulStop()
	}()
	return g.Serve(listener)
}

// --- the client

type client struct {
	connection    *grpc.ClientConn
	name, journal string
	token         string
}

func (c *client) call(method string, request []byte) ([]byte, metadata.MD, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if c.token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token)
	}
	var answer []byte
	var trailer metadata.MD
	err := c.connection.Invoke(ctx, method, &request, &answer, grpc.ForceCodec(raw{}), grpc.Trailer(&trailer),
		grpc.MaxCallRecvMsgSize(1<<30))
	return answer, trailer, err
}

// made is message n: the key, the time and the value tell which one it is.
func made(n uint64, size int) *message {
	m := &message{Offset: n, Timestamp: int64(1_700_000_000_000_000_000 + n), Type: uint32(n % 256)}
	if n%7 == 6 {
		m.Timestamp = nullTime
	}
	if n%3 != 2 {
		m.Key = fmt.Appendf(nil, "key-%d", n%5)
	}
	m.Value = bytes.Repeat(fmt.Appendf(nil, "%08d|", n), size/9+1)[:size]
	return m
}

func (c *client) put(from, count, batch uint64, size int) (calls int, seconds float64, err error) {
	var requests [][]byte
	for n := from; n < from+count; n += batch {
		b := request(c.name, c.journal)
		for k := n; k < min(n+batch, from+count); k++ {
			b = appendMessage(b, 3, made(k, size))
		}
		requests = append(requests, b)
	}
	begun := time.Now()
	for _, b := range requests {
		if _, _, err := c.call("/hub.Hub/Put", b); err != nil {
			return calls, 0, err
		}
		calls++
	}
	return calls, time.Since(begun).Seconds(), nil
}

func main() {
	flags := flag.NewFlagSet("gohub", flag.ExitOnError)
	root := flags.String("root", "", "")
	addr := flags.String("addr", "", "")
	c := &client{}
	flags.StringVar(&c.name, "client", "go", "")
	flags.StringVar(&c.journal, "journal", "log", "")
	flags.StringVar(&c.token, "token", "", "")
	from := flags.Uint64("from", 0, "")
	count := flags.Uint64("count", 10, "")
	batch := flags.Uint64("batch", 1000, "")
	size := flags.Int("size", 100, "")
	offset := flags.Uint64("offset", 0, "")
	_ = flags.Parse(os.Args[2:])
	if os.Args[1] == "serve" {
		check(serve(*root))
		return
	}
	var err error
	c.connection, err = grpc.NewClient(*addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	switch os.Args[1] {
	case "put":
		calls, seconds, err := c.put(*from, *count, *batch, *size)
		told := map[string]any{"calls": calls, "seconds": seconds, "code": status.Code(err).String()}
		if err != nil {
			told["error"] = status.Convert(err).Message()
		}
		check(json.NewEncoder(out).Encode(told))
	case "get":
		b := request(c.name, c.journal)
		b = protowire.AppendVarint(protowire.AppendTag(b, 3, protowire.VarintType), *offset)
		answer, trailer, err := c.call("/hub.Hub/Get", b)
		check(err)
		a, err := parse(answer, 1)
		check(err)
		check(json.NewEncoder(out).Encode(map[string]any{"messages": a.messages, "trailer": trailer}))
	default:
		check(fmt.Errorf("no such command: %s", os.Args[1]))
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
