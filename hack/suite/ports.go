package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	cloud "github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
	edge "github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

// addressPort finds the port of an address, such as tcp://127.0.0.1:1883.
var addressPort = regexp.MustCompile(`:([0-9]{2,5})$`)

// defaultPorts returns the ports of the default configurations of edgecore and cloudcore, in ascending order.
func defaultPorts() ([]int, error) {
	var ports []int
	for _, config := range []any{edge.Default(), cloud.Default()} {
		text, err := json.Marshal(config)
		if err != nil {
			return nil, err
		}
		var fields any
		if err := json.Unmarshal(text, &fields); err != nil {
			return nil, err
		}
		ports = append(ports, portsOf("", fields)...)
	}
	slices.Sort(ports)
	return slices.Compact(ports), nil
}

// portsOf returns the ports in the value of a key.
func portsOf(key string, value any) (ports []int) {
	switch v := value.(type) {
	case map[string]any:
		for key, value := range v {
			ports = append(ports, portsOf(key, value)...)
		}
	case []any:
		for _, value := range v {
			ports = append(ports, portsOf(key, value)...)
		}
	case float64:
		// firstPort and lastPort are a range, of which a port is opened only for a node.
		if strings.HasSuffix(strings.ToLower(key), "port") && v > 0 && key != "firstPort" && key != "lastPort" {
			ports = append(ports, int(v))
		}
	case string:
		if m := addressPort.FindStringSubmatch(v); m != nil {
			if port, err := strconv.Atoi(m[1]); err == nil && port > 0 {
				ports = append(ports, port)
			}
		}
	}
	return ports
}

// holdPorts binds ports, TCP and UDP, without listening, as if programs with the default configuration ran: a test that
// listens on one fails, and one that connects is refused. A port that is in use is left alone: it has the same effect.
func holdPorts(ports []int) (release func(), err error) {
	var held []int
	release = func() {
		for _, fd := range held {
			_ = unix.Close(fd) // sent nothing
		}
	}
	for _, port := range ports {
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
			fd, err := bindPort(port, kind)
			if errors.Is(err, unix.EADDRINUSE) {
				continue
			}
			if err != nil {
				release()
				return nil, fmt.Errorf("hold port %d: %w", port, err)
			}
			held = append(held, fd)
		}
	}
	return release, nil
}

// bindPort binds a port of all IPv4 and IPv6 addresses. The socket must not have SO_REUSEADDR, as others have it.
func bindPort(port, kind int) (fd int, err error) {
	if fd, err = unix.Socket(unix.AF_INET6, kind|unix.SOCK_CLOEXEC, 0); err != nil {
		return 0, err
	}
	if err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0); err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet6{Port: port})
	}
	if err != nil {
		_ = unix.Close(fd)
		return 0, err
	}
	return fd, nil
}
