package crilog

import (
	"bytes"
	"context"
	"io"
	"os"
	"time"
)

const tailBlock = 32 << 10

// seekTail places a file before the last n lines of its first size bytes, and returns how many these are: it may have
// less. A line without its end, which a power cut has torn, counts. It stops when ctx ends: a sparse file can have a
// size that takes years to read.
func seekTail(ctx context.Context, f *os.File, size, n int64) (int64, error) {
	if n <= 0 || size == 0 {
		_, err := f.Seek(size, io.SeekStart)
		return 0, err
	}
	block := make([]byte, tailBlock)
	lines := int64(0)
	for at := size; at > 0 && ctx.Err() == nil; {
		have := min(at, tailBlock)
		at -= have
		if _, err := f.ReadAt(block[:have], at); err != nil {
			return 0, err
		}
		for i := have - 1; i >= 0; i-- {
			// The newline at the very end ends the last line and begins none.
			if block[i] != '\n' || at+i == size-1 {
				continue
			}
			if lines++; lines == n {
				_, err := f.Seek(at+i+1, io.SeekStart)
				return n, err
			}
		}
	}
	_, err := f.Seek(0, io.SeekStart)
	return lines + 1, err
}

const (
	// firstWindow is enough for most logs; records have up to 16 KiB.
	firstWindow = 24 << 10
	// maxWindow is the most that Last reads of a file. A longer record is shown without its head.
	maxWindow = 512 << 10
)

// Last returns the end of the log at path: at most so many lines of at most so many bytes. It begins with the part
// that was rotated away last if the log itself has less. Its errors are those of PrintAttempt.
func Last(path string, lines, size int) ([]byte, error) {
	f, older, err := open(path, time.Time{})
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if older != nil {
		defer older.Close()
	}
	text, found, err := lastOf(f, lines, size)
	if err != nil || older == nil || found >= lines || len(text) >= size {
		return text, err
	}
	before, _, err := lastOf(older, lines-found, size-len(text))
	return append(before, text...), err
}

// lastOf returns the last lines of a file, and how many they are.
func lastOf(f *os.File, lines, size int) (text []byte, found int, err error) {
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	for window := min(info.Size(), firstWindow); ; window = min(info.Size(), window*4, maxWindow) {
		data := make([]byte, window)
		n, err := f.ReadAt(data, info.Size()-window)
		if err != nil && err != io.EOF {
			return nil, 0, err
		}
		whole := window == info.Size()
		last := whole || window == maxWindow
		if text, found = lastIn(data[:n], whole, lines, size); last || found >= lines || len(text) >= size {
			return text, found, nil
		}
	}
}

// lastIn returns the last lines of a piece of a log. The first line of a piece that is not whole has lost its head, and
// is left out unless there is no other. It is pure.
func lastIn(data []byte, whole bool, lines, size int) (text []byte, found int) {
	var texts [][]byte
	sum := 0
	for rest := data; len(rest) > 0 && found < lines && sum < size; found++ {
		begin := bytes.LastIndexByte(bytes.TrimSuffix(rest, []byte(newline)), '\n') + 1
		if begin == 0 && !whole && found > 0 {
			break
		}
		line := textOf(rest[begin:])
		texts, sum = append(texts, line), sum+len(line)
		rest = rest[:begin]
	}
	text = make([]byte, 0, sum)
	for i := len(texts) - 1; i >= 0; i-- {
		text = append(text, texts[i]...)
	}
	return text[max(0, sum-size):], found
}

// textOf returns what a container has written in a raw line, with the newline if the line is no part of a longer one.
func textOf(raw []byte) []byte {
	body, ended := bytes.CutSuffix(raw, []byte(newline))
	line, ok := Parse(body)
	if !ok {
		if line, ok = parseDamaged(body); !ok && headOnly(body) {
			return nil
		}
	}
	if !ok {
		return raw
	}
	if line.Partial || !ended {
		return line.Text
	}
	return append(line.Text[:len(line.Text):len(line.Text)], '\n')
}
