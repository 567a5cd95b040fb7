// Putting until something kills it. Law: a number is said after its Put has returned, in one write(2),
// so that whoever reads the lines knows what was acknowledged, whatever came then.

package main

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
)

// nsqHammer puts the messages first to first+count-1 and says "a NUMBER" for each, or "f NUMBER" where
// Put failed. With --take-every it also takes one: "b" when it begins to, "t NUMBER" when it has it.
func nsqHammer(args []string) error {
	flags := newFlags("nsq hammer")
	var options nsqOptions
	var ending nsqEnding
	options.define(flags)
	ending.define(flags)
	first := flags.Uint64("first", 0, "the number of the first message")
	count := flags.Uint64("count", 100, "how many messages")
	takeEvery := flags.Uint64("take-every", 0, "take one message after each so many puts (0: none)")
	if err := options.parse(flags, args); err != nil {
		return err
	}
	queue := options.open()
	for number := *first; number < *first+*count; number++ {
		if queue.Put(hammered(number)) != nil {
			sayLine("f %d\n", number)
			continue
		}
		sayLine("a %d\n", number)
		if *takeEvery > 0 && number%*takeEvery == 0 {
			sayLine("b\n")
			sayLine("t %d\n", binary.BigEndian.Uint64(<-queue.ReadChan()))
		}
	}
	if ending.abandon {
		os.Exit(0)
	}
	return queue.Close()
}

func sayLine(format string, args ...any) {
	os.Stdout.Write([]byte(fmt.Sprintf(format, args...)))
}

// hammered is message number of tests/torture/messages.py: its number, a filler, and a checksum of both.
func hammered(number uint64) []byte {
	filler := number * 37 % 200
	body := make([]byte, 8, 12+filler)
	binary.BigEndian.PutUint64(body, number)
	for at := uint64(0); at < filler; at++ {
		body = append(body, byte(number*131+at*at*7+at))
	}
	return binary.BigEndian.AppendUint32(body, crc32.ChecksumIEEE(body))
}
