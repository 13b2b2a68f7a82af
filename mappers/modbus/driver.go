package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/simonvetter/modbus"

	"github.com/edgecore-io/edgecore/mappers/mapper"
)

// protocol is spec.protocol.configData: where a device is. The keys are those of KubeEdge's Modbus mapper.
type protocol struct {
	// Modbus TCP.
	IP   string `json:"ip"`
	Port uint16 `json:"port"` // 502 if 0
	// Modbus RTU.
	SerialPort string `json:"serialPort"` // such as /dev/ttyUSB0
	BaudRate   uint   `json:"baudRate"`   // 19200 if 0
	DataBits   uint   `json:"dataBits"`   // 8 if 0
	StopBits   uint   `json:"stopBits"`   // 1 with a parity, else 2, if 0
	Parity     string `json:"parity"`     // none, even or odd
	// SlaveID is the unit on the bus or behind the gateway, 1 to 247; 1 if 0.
	SlaveID uint8 `json:"slaveID"`
	// Timeout of a request, in ms; 1000 if 0.
	Timeout uint32 `json:"timeout"`
}

// visitor is visitors.configData: where a property is.
type visitor struct {
	// Register is CoilRegister, DiscreteInputRegister, HoldingRegister or InputRegister.
	Register string `json:"register"`
	// Offset is the first register, from 0, Limit how many registers the value has; 1 if 0.
	Offset uint16 `json:"offset"`
	Limit  uint16 `json:"limit"`
	// Scale multiplies a number that is read; 1 if 0.
	Scale float64 `json:"scale"`
	// Unsigned is for whole numbers that are never negative. KubeEdge's mapper has no such key.
	Unsigned bool `json:"unsigned"`
	// IsSwap swaps the bytes of each register, IsRegisterSwap the order of the registers.
	IsSwap         bool `json:"isSwap"`
	IsRegisterSwap bool `json:"isRegisterSwap"`
}

// maxLimit is the most registers that one request reads.
const maxLimit = 125

// maxTimeout is the longest timeout of a request: a serial line waits for it.
const maxTimeout = 10 * time.Second

// driver is the Modbus driver. Devices of a namespace behind one gateway, or on a serial line under one name, share a
// bus. Namespaces share no bus, only the serial line: neither settings nor a broken connection of one harm another.
type driver struct {
	// networks are the addresses that devices may have, serialPorts the patterns of the serial ports.
	networks    mapper.Networks
	serialPorts []string

	mu    sync.Mutex
	buses map[busID]*bus
	lines map[uint64]*line // by device number
}

// busID is a bus: the URL is the library's.
type busID struct{ namespace, url string }

// anySerialPort are the serial ports that a device may have if none are listed.
const anySerialPort = "/dev/*,/dev/*/*,/dev/*/*/*"

func newDriver(networks mapper.Networks, serialPorts string) (*driver, error) {
	d := &driver{networks: networks, buses: map[busID]*bus{}, lines: map[uint64]*line{}}
	for item := range strings.SplitSeq(cmp.Or(serialPorts, anySerialPort), ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		if _, err := path.Match(item, "/"); err != nil || !path.IsAbs(item) {
			return nil, fmt.Errorf("serial port %q: want the path of a device, or a pattern such as /dev/ttyUSB*", item)
		}
		d.serialPorts = append(d.serialPorts, item)
	}
	return d, nil
}

// Open implements mapper.Driver. The bus connects at the first request.
func (d *driver) Open(_ context.Context, namespace string, config mapper.Config) (mapper.Conn, error) {
	var p protocol
	if err := config.Decode(&p); err != nil {
		return nil, fmt.Errorf("spec.protocol: %w", err)
	}
	c, err := p.client()
	if err != nil {
		return nil, fmt.Errorf("spec.protocol.configData: %w", err)
	}
	if p.SerialPort != "" && !slices.ContainsFunc(d.serialPorts, func(pattern string) bool {
		ok, _ := path.Match(pattern, p.SerialPort)
		return ok && path.Clean(p.SerialPort) == p.SerialPort
	}) {
		return nil, fmt.Errorf("spec.protocol.configData.serialPort %.128q: this mapper may use %s", p.SerialPort,
			strings.Join(d.serialPorts, ", "))
	}
	id := busID{namespace, c.URL}
	var left []*share
	defer func() { hangUp(left) }()
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.buses[id]
	switch {
	case b == nil:
		b = &bus{driver: d, id: id, config: *c, host: p.IP, serialPort: p.SerialPort}
		if p.SerialPort == "" {
			b.share = &share{line: &line{}}
		} else if device, err := deviceOf(p.SerialPort); err == nil { // else it joins at a request
			if _, left, err = d.join(b, device); err != nil {
				return nil, fmt.Errorf("spec.protocol.configData: %w", err)
			}
		}
		d.buses[id] = b
	case b.config != *c:
		return nil, fmt.Errorf("spec.protocol.configData: another device of namespace %s uses %s with other settings: "+
			"give both the same ones", namespace, c.URL)
	}
	b.users++
	return &conn{driver: d, bus: b, unit: cmp.Or(p.SlaveID, 1)}, nil
}

// client returns the configuration of the library.
func (p *protocol) client() (*modbus.ClientConfiguration, error) {
	c := &modbus.ClientConfiguration{
		Timeout: time.Duration(cmp.Or(p.Timeout, 1000)) * time.Millisecond,
	}
	if c.Timeout > maxTimeout {
		return nil, fmt.Errorf("timeout %d: want at most %d ms", p.Timeout, maxTimeout.Milliseconds())
	}
	if p.SlaveID > 247 {
		return nil, fmt.Errorf("slaveID %d: want 1 to 247", p.SlaveID)
	}
	switch {
	case p.IP != "" && p.SerialPort == "":
		c.URL = "tcp://" + p.IP + ":" + strconv.Itoa(int(cmp.Or(p.Port, 502)))
		if strings.Contains(p.IP, ":") {
			c.URL = "tcp://[" + p.IP + "]:" + strconv.Itoa(int(cmp.Or(p.Port, 502)))
		}
	case p.SerialPort != "" && p.IP == "":
		c.URL = "rtu://" + p.SerialPort
		c.Speed, c.DataBits, c.StopBits = p.BaudRate, p.DataBits, p.StopBits
		switch strings.ToLower(p.Parity) {
		case "", "none", "n":
			c.Parity = modbus.PARITY_NONE
		case "even", "e":
			c.Parity = modbus.PARITY_EVEN
		case "odd", "o":
			c.Parity = modbus.PARITY_ODD
		default:
			return nil, fmt.Errorf("parity %q: want none, even or odd", p.Parity)
		}
	default:
		return nil, errors.New("want either ip (Modbus TCP) or serialPort (Modbus RTU)")
	}
	return c, nil
}

// bus is a connection that devices of a namespace share: one request at a time.
type bus struct {
	driver *driver
	id     busID
	config modbus.ClientConfiguration // without a logger, so that two are equal if their settings are
	host   string                     // of a TCP bus
	users  int                        // guarded by driver.mu

	// serialPort is the name of the port. share is nil while the driver does not know which line that is; guarded by
	// driver.mu. A TCP bus has a line of its own.
	serialPort string
	share      *share

	mu sync.Mutex
}

// request makes a request of a unit, unless ctx has ended when it is the request's turn. After an error of the
// connection, the next request connects again.
func (b *bus) request(ctx context.Context, unit uint8, f func(*modbus.ModbusClient) error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, file, err := b.findLine()
	if err != nil {
		return fmt.Errorf("connect to %s: %w", b.config.URL, err)
	}
	defer closeFile(file)
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.line
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return mapper.Refusal{Cause: err}
	}
	if l.owner != s {
		l.hangUp() // the line may have other settings now
	}
	if l.client == nil {
		if err := b.connect(l, file); err != nil {
			l.hangUp()
			return fmt.Errorf("connect to %s: %w", b.config.URL, err)
		}
		l.owner = s
		if err := ctx.Err(); err != nil {
			return mapper.Refusal{Cause: err}
		}
	}
	err = l.client.SetUnitId(unit)
	if err == nil {
		err = f(l.client)
	}
	if err == nil || refused(err) {
		return err
	}
	if !peerAnswered(err) {
		l.hangUp()
	}
	return fmt.Errorf("unit %d at %s: %w", unit, b.config.URL, err)
}

// connect opens the line: a serial port by its open file. The library gets an address that was checked, not a name that
// may stand for another one.
func (b *bus) connect(l *line, file int) error {
	config := b.config
	config.Logger = log.New(io.Discard, "", 0)
	if b.host != "" {
		ctx, cancel := context.WithTimeout(context.Background(), config.Timeout)
		defer cancel()
		address, err := b.driver.networks.Resolve(ctx, b.host)
		if err != nil {
			return err
		}
		_, port, err := net.SplitHostPort(strings.TrimPrefix(config.URL, "tcp://"))
		if err != nil {
			return err
		}
		config.URL = "tcp://" + net.JoinHostPort(address.String(), port)
	}
	if b.serialPort != "" {
		lock, err := lockPort(pathOf(file))
		if err != nil {
			return err
		}
		l.lock = lock
		config.URL = "rtu://" + pathOf(file)
	}
	client, err := modbus.NewClient(&config)
	if err != nil {
		return err
	}
	if err := client.Open(); err != nil {
		if b.serialPort != "" {
			err = inUse(err)
		}
		return err
	}
	l.client = client
	if l.lock != nil {
		return l.lock.exclude()
	}
	return nil
}

// refused reports whether the device itself refused a request, or cannot carry it out now.
func refused(err error) bool {
	return errors.As(err, new(mapper.Refusal)) || isOneOf(err, modbus.ErrIllegalFunction, modbus.ErrIllegalDataAddress,
		modbus.ErrIllegalDataValue, modbus.ErrServerDeviceFailure, modbus.ErrAcknowledge, modbus.ErrServerDeviceBusy,
		modbus.ErrMemoryParityError, modbus.ErrUnexpectedParameters)
}

// peerAnswered reports whether the other end of the connection answered: the device, or a gateway that does not reach
// it. Other devices behind the gateway use the connection on.
func peerAnswered(err error) bool {
	return refused(err) || isOneOf(err, modbus.ErrGWPathUnavailable, modbus.ErrGWTargetFailedToRespond)
}

func isOneOf(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// conn is a device.
type conn struct {
	driver *driver
	bus    *bus
	unit   uint8
}

// Close implements mapper.Conn.
func (c *conn) Close() error {
	hangUp(c.driver.removeUser(c.bus))
	return nil
}

// removeUser returns what a bus has left if its last user has left.
func (d *driver) removeUser(b *bus) []*share {
	d.mu.Lock()
	defer d.mu.Unlock()
	if b.users--; b.users > 0 {
		return nil
	}
	delete(d.buses, b.id)
	left := d.part(b)
	if len(left) > 0 && len(left[0].buses) > 0 {
		return nil // other names use it on
	}
	return left
}

func readVisitor(p *mapper.Property) (v visitor, err error) {
	if err := p.Visitor.Decode(&v); err != nil {
		return v, fmt.Errorf("visitors.%w", err)
	}
	v.Limit = cmp.Or(v.Limit, 1)
	if v.Scale == 0 {
		v.Scale = 1
	}
	if v.Limit > maxLimit || int(v.Offset)+int(v.Limit) > 1<<16 {
		return v, fmt.Errorf("visitors.configData: offset %d and limit %d: want at most %d registers that exist",
			v.Offset, v.Limit, maxLimit)
	}
	return v, nil
}

// The registers of a device, as KubeEdge names them.
const (
	coil     = "CoilRegister"
	discrete = "DiscreteInputRegister"
	holding  = "HoldingRegister"
	input    = "InputRegister"
)

// Read implements mapper.Conn.
func (c *conn) Read(ctx context.Context, p *mapper.Property) (string, error) {
	v, err := readVisitor(p)
	if err != nil {
		return "", mapper.Refusal{Cause: err}
	}
	var text string
	var data []byte
	err = c.bus.request(ctx, c.unit, func(m *modbus.ModbusClient) (err error) {
		var is bool
		switch v.Register {
		case coil:
			is, err = m.ReadCoil(v.Offset)
			text = strconv.FormatBool(is)
		case discrete:
			is, err = m.ReadDiscreteInput(v.Offset)
			text = strconv.FormatBool(is)
		case holding, input:
			kind := modbus.HOLDING_REGISTER
			if v.Register == input {
				kind = modbus.INPUT_REGISTER
			}
			data, err = m.ReadRawBytes(v.Offset, v.Limit*2, kind)
		default:
			err = mapper.Refusal{Cause: fmt.Errorf("visitors.configData.register %q: want %s, %s, %s or %s", v.Register,
				coil, discrete, holding, input)}
		}
		return err
	})
	if err == nil && data != nil {
		if text, err = v.decode(p.Type, data); err != nil {
			return "", mapper.Refusal{Cause: err}
		}
	}
	return text, refusal(err)
}

// refusal marks the errors that do not end the connection.
func refusal(err error) error {
	if err != nil && refused(err) {
		return mapper.Refusal{Cause: err}
	}
	return err
}

// Write implements mapper.Conn.
func (c *conn) Write(ctx context.Context, p *mapper.Property, value string) error {
	v, err := readVisitor(p)
	if err != nil {
		return mapper.Refusal{Cause: err}
	}
	switch v.Register {
	case coil:
		on, err := parseBool(value)
		if err != nil {
			return mapper.Refusal{Cause: err}
		}
		return refusal(c.bus.request(ctx, c.unit, func(m *modbus.ModbusClient) error {
			return m.WriteCoil(v.Offset, on)
		}))
	case holding:
		data, err := v.encode(p.Type, value)
		if err == nil {
			err = v.inRange(p, value, data)
		}
		if err != nil {
			return mapper.Refusal{Cause: err}
		}
		return refusal(c.bus.request(ctx, c.unit, func(m *modbus.ModbusClient) error {
			if v.Limit == 1 { // some devices know only this function
				return m.WriteRegister(v.Offset, binary.BigEndian.Uint16(data))
			}
			return m.WriteRawBytes(v.Offset, data)
		}))
	}
	return mapper.Refusal{Cause: fmt.Errorf("visitors.configData.register %q cannot be written: want %s or %s",
		v.Register, coil, holding)}
}
