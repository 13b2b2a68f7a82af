package mapper_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/edgecore-io/edgecore/mappers/mapper"
)

// driver is the least that a mapper needs: its devices are folders, and their properties files.
type driver struct{}

// Open returns a device by spec.protocol.configData, such as {"path": "/var/lib/hall"}.
func (driver) Open(_ context.Context, _ string, config mapper.Config) (mapper.Conn, error) {
	var place struct {
		Path string `json:"path"`
	}
	if err := config.Decode(&place); err != nil {
		return nil, err
	}
	return conn{place.Path}, nil
}

type conn struct{ dir string }

// Read returns a Refusal if the device answers, but does not have the property. Any other error ends the connection:
// the device is offline.
func (c conn) Read(_ context.Context, p *mapper.Property) (string, error) {
	data, err := os.ReadFile(filepath.Join(c.dir, filepath.Base(p.Name)))
	if errors.Is(err, os.ErrNotExist) {
		return "", mapper.Refusal{Cause: fmt.Errorf("there is no property %s", p.Name)}
	}
	return string(data), err
}

func (c conn) Write(_ context.Context, p *mapper.Property, value string) error {
	return os.WriteFile(filepath.Join(c.dir, filepath.Base(p.Name)), []byte(value), 0o644)
}

func (c conn) Close() error { return nil }

// A mapper is a Driver and a call of Run, which serves the Devices of the node until it is told to stop.
func ExampleRun() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := mapper.Run(ctx, mapper.Options{
		Name:     "files",
		Version:  "v1",
		Protocol: "files",                                // spec.protocol.protocolName
		Agent:    "/run/edgecore/dmi/dmi.sock",           // mounted from the node
		Socket:   "/run/edgecore/dmi/mappers/files.sock", // in the same folder, at the same path as on the node
		Driver:   driver{},
		Log:      slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "files:", err)
	}
}

// A driver can be tried without edgecore.
func ExampleDriver() {
	dir, err := os.MkdirTemp("", "hall")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	device, err := driver{}.Open(ctx, "default", mapper.Config{"path": dir})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer device.Close()
	fmt.Println(device.Write(ctx, &mapper.Property{Name: "limit"}, "21.5"))
	fmt.Println(device.Read(ctx, &mapper.Property{Name: "limit"}))
	_, err = device.Read(ctx, &mapper.Property{Name: "humidity"})
	fmt.Println(err, errors.As(err, &mapper.Refusal{}))
	// Output:
	// <nil>
	// 21.5 <nil>
	// there is no property humidity true
}

// Networks limit what a mapper connects to, by a flag: anyone who may create Devices chooses where a device is.
func ExampleNetworks() {
	var networks mapper.Networks
	if err := networks.Set("192.0.2.0/24, 198.51.100.7"); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(networks.Resolve(context.Background(), "192.0.2.7"))
	_, err := networks.Resolve(context.Background(), "203.0.113.1")
	fmt.Println(err)
	// Output:
	// 192.0.2.7 <nil>
	// 203.0.113.1 is in none of the networks that this mapper may use: 192.0.2.0/24,198.51.100.7/32
}
