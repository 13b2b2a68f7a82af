// Package crilog reads the logs that a CRI runtime writes: lines of "<time> <stdout|stderr> <P|F> <text>", where
// P marks a part of a longer line.
//
// It prints what the kubelet's own reader prints (k8s.io/cri-client/pkg/logs), and more where that prints nothing: what
// a power cut has left of a record, what is damaged, and the part that was rotated away last. Without Follow an answer
// ends where the log ended when it was opened.
//
// Pods with a writable /var/log can damage and replace logs. Files are opened by package logdir, which opens regular
// files in the container's own folder only, and memory and time spent on a log are bounded whatever is in it.
package crilog

import (
	"bytes"
	"strings"
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

// Parse reads a line without its newline; ok is false when it has not the form. Text is a part of raw. A tag that is
// not known is one of a whole line, as for a kubelet.
func Parse(raw []byte) (line Line, ok bool) {
	stamp, rest, ok1 := bytes.Cut(raw, []byte(" "))
	stream, rest, ok2 := bytes.Cut(rest, []byte(" "))
	tags, text, ok3 := bytes.Cut(rest, []byte(" "))
	if !ok1 || !ok2 || len(stamp) > maxStamp {
		return Line{}, false
	}
	tag, _, _ := bytes.Cut(tags, []byte(":"))
	if !ok3 && string(tag) != "P" && string(tag) != "F" {
		return Line{}, false
	}
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil || (string(stream) != "stdout" && string(stream) != "stderr") {
		return Line{}, false
	}
	return Line{Time: at, Stderr: string(stream) == "stderr", Partial: string(tag) == "P", Text: text}, true
}

// maxStamp is how long the time of a line is at most.
const maxStamp = len("2006-01-02T15:04:05.000000000+07:00")

// parseDamaged reads a line that Parse does not take. A power cut has torn a record, and the runtime has appended a
// whole one to what was left. What was left without a text is dropped, and anything else stays before the text. ok is
// false when there is no whole record in the line.
func parseDamaged(raw []byte) (line Line, ok bool) {
	for at := 0; at < len(raw); {
		i := bytes.Index(raw[at:], []byte(" std"))
		if i < 0 {
			return Line{}, false
		}
		end := at + i
		at = end + 1
		for begin := max(end-maxStamp, 0); begin <= end-len("2006-01-02T15:04:05Z"); begin++ {
			if raw[begin+4] != '-' || raw[begin+10] != 'T' {
				continue
			}
			if line, ok = Parse(raw[begin:]); !ok {
				continue
			}
			if before := raw[:begin]; !headOnly(before) {
				line.Text = append(bytes.Clone(before), line.Text...)
			}
			return line, true
		}
	}
	return Line{}, false
}

// headOnly reports whether what is left of a record has nothing that a container has written: zeroes in the place of
// blocks that did not reach the disk, and a time, a stream and a tag or the beginning of these.
func headOnly(raw []byte) bool {
	text := string(bytes.Trim(raw, "\x00"))
	stamp, rest, more := strings.Cut(text, " ")
	if len(stamp) > maxStamp || strings.Trim(stamp, "0123456789-:.TZ+") != "" {
		return false
	}
	if !more {
		return true
	}
	stream, tag, more := strings.Cut(rest, " ")
	if !more {
		return strings.HasPrefix("stdout", stream) || strings.HasPrefix("stderr", stream)
	}
	known := tag == "" || len(tag) <= 2 && (tag[0] == 'P' || tag[0] == 'F') && strings.TrimSpace(tag[1:]) == ""
	return known && (stream == "stdout" || stream == "stderr")
}
