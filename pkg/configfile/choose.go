package configfile

import (
	"bytes"
	"fmt"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

// InForce is the configuration that the agent uses: that of its file, or a copy of the last good one.
type InForce struct {
	Config   *v1alpha2.EdgeCore
	Warnings []string
	// File is the configuration file, From what Config was read from: File or a copy.
	File, From string
	// Data is what was read from there, FileData the content of File; nil if it cannot be read.
	Data, FileData []byte
	// Bad is why File is not used; nil if it is. Refused: it is valid, and was refused after a trial.
	Bad     error
	Refused bool
	// Copies are the copies of File.
	Copies Copies
}

// Choose returns the configuration in force. A file that cannot be read, is not valid or was refused is replaced by the
// newest copy that this version can use. If there is none, the error is that of the file.
func Choose(file string) (*InForce, error) {
	f := &InForce{File: file, From: file}
	data, err := v1alpha2.Read(file)
	if err == nil {
		f.Data, f.FileData = data, data
		f.Config, f.Warnings, err = v1alpha2.Parse(data)
	}
	if err != nil {
		all := func([]byte) bool { return false }
		return f.fromCopy(fmt.Errorf("configuration %s: %w", file, err), copiesFor(file, data), all)
	}
	f.Copies = CopiesOf(file, f.Config.Database.DataSource)
	if reason := f.Copies.Refused(data); reason != "" {
		other := *f
		other.Refused = true
		if c, err := other.fromCopy(fmt.Errorf("configuration %s: %s", file, reason), []Copies{f.Copies},
			except(data)); err == nil {
			return c, nil
		}
	}
	return f, nil
}

// Instead returns the newest copy that differs, for an agent that could not start with f. The error is why. If the
// agent has run with the file before, an older copy may be of another cloud: then only one with the same link is taken.
func (f *InForce) Instead(why error) (*InForce, error) {
	if f.Bad != nil {
		return nil, why
	}
	skip := except(f.FileData)
	if newest, ok := f.Copies.Newest(); ok && bytes.Equal(newest.Data, f.FileData) {
		skip = func(data []byte) bool { return bytes.Equal(data, f.FileData) || ChangesLink(data, f.Config) }
	}
	other := *f
	return other.fromCopy(fmt.Errorf("configuration %s: %w", f.File, why), []Copies{f.Copies}, skip)
}

func except(data []byte) func([]byte) bool {
	return func(other []byte) bool { return bytes.Equal(data, other) }
}

// fromCopy takes the configuration from the first copy that this version can use, perhaps without keys that it does not
// know, and that is not skipped. If there is none, the error is bad.
func (f *InForce) fromCopy(bad error, places []Copies, skip func([]byte) bool) (*InForce, error) {
	for _, c := range places {
		for _, kept := range c.List() {
			if skip(kept.Data) {
				continue
			}
			cfg, warnings, err := v1alpha2.Parse(kept.Data)
			if err != nil {
				cfg, warnings, err = v1alpha2.ParseKnown(kept.Data)
			}
			if err != nil {
				continue
			}
			f.Config, f.Warnings, f.Data, f.From, f.Bad, f.Copies = cfg, warnings, kept.Data, kept.Path, bad, c
			return f, nil
		}
	}
	return nil, bad
}

// Notice says that the file is not used and what is, for a condition or a command; nil if the file is in force.
func (f *InForce) Notice() error {
	if f.Bad == nil {
		return nil
	}
	return fmt.Errorf("%w; %s is in force, the last configuration with which edgecore ran", f.Bad, f.From)
}
