package dns

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxResolvConf is the size, in bytes, from which on a file is no resolver file.
const maxResolvConf = 1 << 20

// host reads the node's own settings. absent, when not empty, tells that there are none.
//
// A node that has no such file has no network that it knows of; its pods run all the same. One that has a
// link to a file that is not there has a resolver that has not started yet: a pod started now would be
// without DNS for as long as it lives, so it waits.
func (c *Configurer) host() (config *runtimeapi.DNSConfig, absent string, err error) {
	path := c.cfg.ResolvConf
	if path == "" {
		return &runtimeapi.DNSConfig{}, "", nil
	}
	data, err := readLimited(path)
	if errors.Is(err, os.ErrNotExist) {
		if link, linkErr := os.Readlink(path); linkErr == nil {
			return nil, "", fmt.Errorf("resolver settings of the node: %s leads to %s, which does not exist (yet); "+
				"start the node's resolver, or set resolvConf to another file", path, link)
		}
		return &runtimeapi.DNSConfig{}, fmt.Sprintf("%s does not exist: the pod has no name servers. "+
			"Make the file, or set resolvConf to another, and start the pod again.", path), nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("resolver settings of the node: %w; repair the file, or set resolvConf to another",
			err)
	}
	config, err = ParseResolvConf(data)
	if err != nil {
		return nil, "",
			fmt.Errorf("resolver settings of the node: %s: %w; repair the file, or set resolvConf to another", path,
				err)
	}
	return config, "", nil
}

func readLimited(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxResolvConf+1))
	if err == nil && len(data) > maxResolvConf {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxResolvConf)
	}
	return data, err
}

// ParseResolvConf reads resolv.conf(5) as the kubelet does: of search lines the last counts, domain lines do not,
// options add up. Invalid lines are skipped, as resolvers do. A file without any valid line, or whose servers are all
// invalid IP addresses, is an error.
func ParseResolvConf(data []byte) (*runtimeapi.DNSConfig, error) {
	config := &runtimeapi.DNSConfig{}
	var known bool
	var fault error
	number := 0
	for line := range bytes.Lines(data) {
		number++
		fields := settings(string(line))
		if len(fields) == 0 {
			continue
		}
		ok, err := apply(config, fields)
		known = known || ok
		if err != nil && fault == nil {
			fault = fmt.Errorf("line %d: %w", number, err)
		}
	}
	if fault != nil && (!known || len(config.Servers) == 0) {
		return nil, fault
	}
	return config, nil
}

// settings splits a line into words, without comments.
func settings(line string) []string {
	fields := strings.Fields(line)
	for i, f := range fields {
		if f[0] == '#' || f[0] == ';' {
			return fields[:i]
		}
	}
	return fields
}

// apply applies one line of the file. known is false for a line that is not a resolver setting.
func apply(config *runtimeapi.DNSConfig, fields []string) (known bool, err error) {
	switch name, values := fields[0], fields[1:]; name {
	case "nameserver":
		if len(values) == 0 {
			return true, errors.New("nameserver without an address")
		}
		if _, err := netip.ParseAddr(values[0]); err != nil {
			return true, fmt.Errorf("nameserver %q is not an IP address", clip(values[0]))
		}
		config.Servers = append(config.Servers, values[0])
	case "search":
		config.Searches = domains(values)
	case "options":
		for _, o := range values {
			if printable(o) {
				config.Options = setOption(config.Options, o)
			}
		}
	case "domain", "sortlist", "lookup", "family":
	default:
		return false, fmt.Errorf("%q is not a resolver setting", clip(name))
	}
	return true, nil
}

// domains cleans a search list: the same domain with and without its last dot is one, and the dot alone is none. musl
// takes a "search ." to mean that nothing is to be looked up.
func domains(list []string) []string {
	var out []string
	for _, s := range list {
		s = strings.TrimSuffix(s, ".")
		if s != "" && printable(s) {
			out = append(out, s)
		}
	}
	return unique(out)
}

// printable reports whether a word can go into a pod's file as it is.
func printable(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f }) < 0
}

// clip shortens what comes from a file for a message.
func clip(s string) string { return s[:min(len(s), 64)] }
