package vm

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

// monitorTimeout bounds what is asked of qemu itself, which answers also when its machine does not.
const monitorTimeout = time.Minute

// qmpCommand is a command of qemu's monitor.
type qmpCommand struct {
	Execute   string         `json:"execute"`
	Arguments map[string]any `json:"arguments,omitempty"`
}

// qmpReply is what qemu says: to a command, by itself, or first of all.
type qmpReply struct {
	Greeting json.RawMessage `json:"QMP"`
	Event    string          `json:"event"`
	Return   json.RawMessage `json:"return"`
	Error    *struct {
		Desc string `json:"desc"`
	} `json:"error"`
}

// qmp has qemu carry out commands.
func (m *VM) qmp(ctx context.Context, commands ...qmpCommand) error {
	ctx, cancel := context.WithTimeout(ctx, monitorTimeout)
	defer cancel()
	var conn net.Conn
	if err := daemon.Poll(ctx, func() (err error) {
		if !m.proc.running() {
			return daemon.Fatal(fmt.Errorf("qemu has ended:\n%s", daemon.Tail(m.log(), 10)))
		}
		conn, err = (&net.Dialer{}).DialContext(ctx, "unix", m.monitor())
		return err
	}); err != nil {
		return fmt.Errorf("reach qemu's monitor: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	return converse(conn, append([]qmpCommand{{Execute: "qmp_capabilities"}}, commands...))
}

// converse sends commands, each when the one before was answered.
func converse(conn net.Conn, commands []qmpCommand) error {
	replies, encoder := json.NewDecoder(conn), json.NewEncoder(conn)
	for _, c := range commands {
		if err := encoder.Encode(c); err != nil {
			return fmt.Errorf("qemu's monitor, %s: %w", c.Execute, err)
		}
		for answered := false; !answered; {
			var r qmpReply
			if err := replies.Decode(&r); err != nil {
				return fmt.Errorf("qemu's monitor, %s: %w", c.Execute, err)
			}
			if r.Error != nil {
				return fmt.Errorf("qemu's monitor, %s: %s", c.Execute, r.Error.Desc)
			}
			answered = r.Return != nil
		}
	}
	return nil
}

// cable says whether the network's cable is in.
func cable(in bool) qmpCommand {
	return qmpCommand{Execute: "set_link", Arguments: map[string]any{"name": nic, "up": in}}
}
