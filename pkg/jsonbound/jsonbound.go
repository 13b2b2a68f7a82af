// Package jsonbound counts the elements of a text in JSON before it is decoded. An element takes as little as two bytes
// in the text and can take hundreds in memory, so that a bound of the size alone does not bound what decoding takes.
package jsonbound

import "bytes"

// HasMore reports whether a text in JSON has more elements than so many: those of lists, and fields of objects.
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

// endOfString returns where the string ends that began before a place: at its quote, or at the end of a text that has
// none.
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
