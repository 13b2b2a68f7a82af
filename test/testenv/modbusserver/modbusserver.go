// Package modbusserver is a Modbus device for tests: registers and coils behind Modbus TCP, and behind a serial line.
package modbusserver

import (
	"io"
	"log"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/simonvetter/modbus"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

// Size is how many registers and coils there are.
const Size = 1024

// Server is a device with unit 1.
type Server struct {
	IP   string
	Port int

	running *modbus.ModbusServer

	mu      sync.Mutex
	holding [Size]uint16
	coils   [Size]bool
	writes  int
	clients map[string]bool
}

// New makes a device with a free port, on which it does not listen yet.
func New() (*Server, error) {
	port, err := daemon.FreePort()
	return &Server{IP: "127.0.0.1", Port: port, clients: map[string]bool{}}, err
}

// Start starts a device on a free port until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	s, err := New()
	if err == nil {
		err = s.Listen()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Listen serves, also again after Stop, until Stop.
func (s *Server) Listen() error {
	server, err := modbus.NewServer(&modbus.ServerConfiguration{
		URL:     "tcp://" + net.JoinHostPort(s.IP, strconv.Itoa(s.Port)),
		Timeout: time.Hour,
		Logger:  log.New(io.Discard, "", 0),
	}, handler{s})
	if err != nil {
		return err
	}
	if err := server.Start(); err != nil {
		return err
	}
	s.running = server
	return nil
}

// Stop ends the connections and listens no more.
func (s *Server) Stop() error {
	if s.running == nil {
		return nil
	}
	err := s.running.Stop()
	s.running = nil
	return err
}

// Set sets holding registers, from an address on.
func (s *Server) Set(address int, values ...uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	copy(s.holding[address:], values)
}

// Register returns a holding register.
func (s *Server) Register(address int) uint16 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holding[address]
}

// Coil returns a coil.
func (s *Server) Coil(address int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.coils[address]
}

// Writes returns how many requests have written.
func (s *Server) Writes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

// Connections returns how many connections have made requests.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.clients)
}

var errUnit = modbus.ErrGWTargetFailedToRespond

type handler struct{ s *Server }

func (h handler) HandleCoils(r *modbus.CoilsRequest) (out []bool, err error) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.s.clients[r.ClientAddr] = true
	if err := check(r.UnitId, r.Addr, r.Quantity); err != nil {
		return nil, err
	}
	if r.IsWrite {
		h.s.writes++
		copy(h.s.coils[r.Addr:], r.Args)
	}
	return append(out, h.s.coils[r.Addr:r.Addr+r.Quantity]...), nil
}

func (h handler) HandleDiscreteInputs(*modbus.DiscreteInputsRequest) ([]bool, error) {
	return nil, modbus.ErrIllegalFunction
}

func (h handler) HandleHoldingRegisters(r *modbus.HoldingRegistersRequest) (out []uint16, err error) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.s.clients[r.ClientAddr] = true
	if err := check(r.UnitId, r.Addr, r.Quantity); err != nil {
		return nil, err
	}
	if r.IsWrite {
		h.s.writes++
		copy(h.s.holding[r.Addr:], r.Args)
	}
	return append(out, h.s.holding[r.Addr:r.Addr+r.Quantity]...), nil
}

func (h handler) HandleInputRegisters(*modbus.InputRegistersRequest) ([]uint16, error) {
	return nil, modbus.ErrIllegalFunction
}

func check(unit uint8, address, quantity uint16) error {
	switch {
	case unit != 1:
		return errUnit
	case int(address)+int(quantity) > Size:
		return modbus.ErrIllegalDataAddress
	}
	return nil
}
