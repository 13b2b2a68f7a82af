package main

import (
	"errors"
	"net"
	"strconv"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDefaultPorts(t *testing.T) {
	got, err := defaultPorts()
	if err != nil {
		t.Fatal(err)
	}
	want := []int{
		1883, 1884, // MQTT
		9060,                              // KubeEdge's servicebus
		9091,                              // cloudcore's metrics and probes
		9443,                              // KubeEdge's router
		10000, 10001, 10002, 10003, 10004, // cloudcore's ports for nodes
		10250, 10255, // the node's
		10350, // KubeEdge's tunnel
		10550, // KubeEdge's metaserver
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
}

// TestHoldPorts: nobody listens on a held port, who connects is refused, and a port that is in use does not matter.
func TestHoldPorts(t *testing.T) {
	used, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	_ = free.Close()
	release, err := holdPorts([]int{used.Addr().(*net.TCPAddr).Port, port})
	if err != nil {
		t.Fatal(err)
	}
	address := "127.0.0.1:" + strconv.Itoa(port)
	if l, err := net.Listen("tcp", address); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("listen on a held port = %v, %v; want %v", l, err, syscall.EADDRINUSE)
	}
	if c, err := net.ListenPacket("udp", address); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("UDP on a held port = %v, %v; want %v", c, err, syscall.EADDRINUSE)
	}
	if c, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial of a held port = %v, %v; want %v", c, err, syscall.ECONNREFUSED)
	}
	release()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatalf("listen on a port that was released: %v", err)
	}
	_ = l.Close()
}
