// Package crilog reads the logs that a CRI runtime writes: lines of "<time> <stdout|stderr> <P|F> <text>", where
// P marks a part of a longer line.
//
// Pods with a writable /var/log can damage and replace logs. Files are opened by package logdir, which opens regular
// files in the container's own folder only, and memory and time spent on a log are bounded whatever is in it.
package crilog

import (
	"bytes"
	"time"
)

// Line is one line of a container's output.
type Line struct {
	Time   time.Time
	Stderr bool
	// Partial: the next line of the stream goes on with this one.
	Partial bool
	Text    []byte
}

// Parse reads a line without its newline; ok is false when it has not the form. Text is a part of raw.
func Parse(raw []byte) (line Line, ok bool) {
	stamp, rest, ok1 := bytes.Cut(raw, []byte(" "))
	stream, rest, ok2 := bytes.Cut(rest, []byte(" "))
	tags, text, ok3 := bytes.Cut(rest, []byte(" "))
	if !ok1 || !ok2 {
		return Line{}, false
	}
	if !ok3 {
		tags, text = rest, nil // an empty line
	}
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil || (string(stream) != "stdout" && string(stream) != "stderr") {
		return Line{}, false
	}
	tag, _, _ := bytes.Cut(tags, []byte(":"))
	if string(tag) != "P" && string(tag) != "F" {
		return Line{}, false
	}
	return Line{Time: at, Stderr: string(stream) == "stderr", Partial: string(tag) == "P", Text: text}, true
}
