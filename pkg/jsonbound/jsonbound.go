// Package jsonbound counts the elements of a JSON text before it is decoded. An element takes as little as two bytes of
// text and can take hundreds in memory, so limiting the size alone does not limit the memory for decoding.
package jsonbound

import "bytes"

// HasMore reports whether a JSON text has more elements than most: list items and object fields.
func HasMore(data []byte, most int) bool {
	if len(data) < 2*most { // each takes two bytes
		return false
	}
	count := 0
	for i := 0; i < len(data) && count <= most; i++ {
		switch data[i] {
		case '"':
			i = endOfString(data, i+1)
		case ',', '{', '[':
			count++
		}
	}
	return count > most
}

// endOfString returns the end of the string that began before at: its quote, or the end of the text.
func endOfString(data []byte, at int) int {
	for at < len(data) {
		next := bytes.IndexAny(data[at:], `"\`)
		if next < 0 {
			return len(data)
		}
		at += next
		if data[at] == '"' {
			return at
		}
		at += 2 // what follows a backslash does not end it
	}
	return len(data)
}
