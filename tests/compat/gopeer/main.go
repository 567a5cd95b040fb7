// Gopeer runs the Go libraries whose files diskq shares, so that tests and benchmarks can put
// the original on the other side of a directory.
//
//	gopeer PEER COMMAND [--flag ...]
//
// One file per peer registers its commands in peers below. Law: messages travel as frames
// (frames.go), reports as one JSON object on one line, errors as one line on stderr with exit
// code 1. No peer's source is here: each is a module in go.mod.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sort"
	"strings"
)

// A command parses its own flags and writes its own report.
type command struct {
	help string
	run  func(args []string) error
}

type commands map[string]command

var peers = map[string]commands{
	"nsq": nsqCommands,
}

func main() {
	if err := dispatch(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gopeer: "+oneLine(err.Error()))
		os.Exit(1)
	}
}

func dispatch(args []string) error {
	if len(args) == 0 || isHelp(args[0]) {
		fmt.Print(overview())
		return nil
	}
	known, ok := peers[args[0]]
	if !ok {
		return fmt.Errorf("no peer %q: one of %s", args[0], keys(peers))
	}
	if err := known.dispatch(args[0], args[1:]); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return nil
}

func (known commands) dispatch(path string, args []string) error {
	if len(args) == 0 || isHelp(args[0]) {
		fmt.Print(known.overview(path))
		return nil
	}
	chosen, ok := known[args[0]]
	if !ok {
		return fmt.Errorf("no command %q: one of %s", args[0], keys(known))
	}
	err := chosen.run(args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return nil
}

func isHelp(arg string) bool {
	return arg == "-h" || arg == "--help" || arg == "help"
}

func overview() string {
	var text strings.Builder
	text.WriteString("usage: gopeer PEER COMMAND [--flag ...]   (COMMAND --help lists its flags)\n\n")
	for _, name := range sorted(peers) {
		text.WriteString(peers[name].overview(name))
	}
	return text.String()
}

func (known commands) overview(path string) string {
	var text strings.Builder
	for _, name := range sorted(known) {
		fmt.Fprintf(&text, "gopeer %s %-8s %s\n", path, name, known[name].help)
	}
	return text.String()
}

// newFlags answers --help on stdout and reports everything else as an error, in one line.
func newFlags(name string) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Usage = func() {
		fmt.Printf("usage: gopeer %s [--flag ...]\n", name)
		flags.SetOutput(os.Stdout)
		flags.PrintDefaults()
		flags.SetOutput(io.Discard)
	}
	return flags
}

// parse also refuses what is left over, which is always a mistyped flag here. flag calls Usage
// on every error; only a question for help may print.
func parse(flags *flag.FlagSet, args []string) error {
	usage := flags.Usage
	flags.Usage = func() {}
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		usage()
	}
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("what is %q", flags.Arg(0))
	}
	return err
}

func report(to io.Writer, value any) error {
	return json.NewEncoder(to).Encode(value)
}

// moduleVersion tells which release of a peer this program was built with.
func moduleVersion(path string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, dep := range info.Deps {
		if dep.Path == path {
			return dep.Version
		}
	}
	return "unknown"
}

func oneLine(text string) string {
	return strings.Join(strings.Fields(text), " ")
}

func sorted[V any](table map[string]V) []string {
	names := make([]string, 0, len(table))
	for name := range table {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func keys[V any](table map[string]V) string {
	return strings.Join(sorted(table), ", ")
}
