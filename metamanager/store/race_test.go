//go:build race

package store

// raceEnabled: times mean nothing under the race detector.
const raceEnabled = true
