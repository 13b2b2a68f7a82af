// Command modbus is a mapper for Modbus devices, over TCP and serial lines (RTU). See mappers/README.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/edgecore-io/edgecore/mappers/mapper"
	"github.com/edgecore-io/edgecore/pkg/version"
)

func main() {
	o := mapper.Options{Name: "modbus", Version: version.String()}
	var networks mapper.Networks
	flag.StringVar(&o.Protocol, "protocol", "modbus", "the `name` in spec.protocol.protocolName of the devices")
	flag.StringVar(&o.Agent, "agent", "/run/edgecore/dmi/dmi.sock",
		"the `socket` of edgecore (modules.deviceTwin.dmiSockPath)")
	flag.StringVar(&o.Socket, "socket", "/run/edgecore/dmi/mappers/modbus.sock",
		"the `socket` to make for edgecore; it has the same path for both")
	flag.Var(&networks, "networks", "the `networks` of Modbus TCP devices, such as 192.168.7.0/24,10.1.2.3; "+
		"without it, all but the node's own addresses and link-local ones")
	serialPorts := flag.String("serial-ports", "", "the `paths` of serial ports, such as /dev/ttyUSB0,/dev/ttyS*; "+
		"without it, all in /dev")
	flag.Var(&o.Brokers, "brokers", "the `networks` of the brokers of pushMethod.mqtt; without it, all but the "+
		"node's own addresses and link-local ones")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), "modbus reads and writes Modbus devices for edgecore.\n\n"+
			"It serves the Devices of this node whose spec.protocol.protocolName is that of --protocol.\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "modbus: unknown argument %q; see --help\n", flag.Arg(0))
		os.Exit(2)
	}
	driver, err := newDriver(networks, *serialPorts)
	if err != nil {
		fmt.Fprintln(os.Stderr, "modbus: --serial-ports:", err)
		os.Exit(2)
	}
	o.Driver = driver
	o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := mapper.Run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "modbus:", err)
		stop()
		os.Exit(1)
	}
}
