package streaming

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Bounds of what a client may ask for.
const (
	maxCommand = 64 << 10
	maxPorts   = 32
)

// wants are the streams of an exec or an attach.
type wants struct{ stdin, stdout, stderr, tty bool }

// parseWants reads them from a query. It is pure.
func parseWants(query url.Values) (wants, error) {
	on := func(name string) bool { v := query.Get(name); return v == "1" || v == "true" }
	s := wants{
		stdin:  on("input") || on("stdin"),
		stdout: on("output") || on("stdout"),
		stderr: on("error") || on("stderr"),
		tty:    on("tty"),
	}
	if !s.stdin && !s.stdout && !s.stderr {
		return wants{}, refuse(http.StatusBadRequest, "you must specify at least 1 of stdin, stdout, stderr")
	}
	s.stderr = s.stderr && !s.tty // a terminal has one output
	return s, nil
}

// parseCommand reads the command of an exec. It is pure.
func parseCommand(query url.Values) ([]string, error) {
	command := query["command"]
	if len(command) == 0 || command[0] == "" {
		return nil, refuse(http.StatusBadRequest, "no command: ask with ?command=PROGRAM&command=ARGUMENT")
	}
	size := 0
	for _, c := range command {
		size += len(c)
	}
	if size > maxCommand {
		return nil, refuse(http.StatusRequestEntityTooLarge, "the command has %d bytes; more than %d are not taken",
			size, maxCommand)
	}
	return command, nil
}

// Exec runs a command in a container and joins the client to its streams.
func (s *Server) Exec() http.Handler {
	return s.handler(s.streams, func(w http.ResponseWriter, r *http.Request) error {
		query := r.URL.Query()
		command, err := parseCommand(query)
		if err != nil {
			return err
		}
		want, err := parseWants(query)
		if err != nil {
			return err
		}
		pod, err := s.pod(r)
		if err != nil {
			return err
		}
		c, err := s.container(r.Context(), pod, r.PathValue("container"))
		if err != nil {
			return err
		}
		if !upgrades(r) {
			return errUpgrade
		}
		resp, err := s.opts.Runtime.Exec(r.Context(), &runtimeapi.ExecRequest{
			ContainerId: c.ID,
			Cmd:         command,
			Tty:         want.tty,
			Stdin:       want.stdin,
			Stdout:      want.stdout,
			Stderr:      want.stderr,
		})
		if err != nil {
			return err
		}
		return s.join(w, r, resp.Url)
	})
}

// Attach joins the client to the streams of a container's own process.
func (s *Server) Attach() http.Handler {
	return s.handler(s.streams, func(w http.ResponseWriter, r *http.Request) error {
		want, err := parseWants(r.URL.Query())
		if err != nil {
			return err
		}
		pod, err := s.pod(r)
		if err != nil {
			return err
		}
		name := r.PathValue("container")
		c, err := s.container(r.Context(), pod, name)
		if err != nil {
			return err
		}
		if !upgrades(r) {
			return errUpgrade
		}
		// Whether a process has a terminal was settled when it began.
		want.tty = spec(pod, name).TTY
		resp, err := s.opts.Runtime.Attach(r.Context(), &runtimeapi.AttachRequest{
			ContainerId: c.ID, Tty: want.tty, Stdin: want.stdin, Stdout: want.stdout, Stderr: want.stderr && !want.tty})
		if err != nil {
			return err
		}
		return s.join(w, r, resp.Url)
	})
}

// Run runs a command (?cmd=, whose words are separated by single spaces) and answers with what it printed.
func (s *Server) Run() http.Handler {
	return s.handler(s.streams, func(w http.ResponseWriter, r *http.Request) error {
		query := r.URL.Query()
		command, err := parseCommand(url.Values{"command": strings.Split(query.Get("cmd"), " ")})
		if err != nil {
			return refuse(http.StatusBadRequest, "no command, or one that is too long: ask with ?cmd=PROGRAM ARGUMENT")
		}
		pod, err := s.pod(r)
		if err != nil {
			return err
		}
		c, err := s.container(r.Context(), pod, r.PathValue("container"))
		if err != nil {
			return err
		}
		resp, err := s.opts.Runtime.ExecSync(r.Context(), &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: command})
		if err != nil {
			return err
		}
		output := bytes.Join([][]byte{resp.Stdout, resp.Stderr}, nil)
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if resp.ExitCode != 0 {
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprintf(w, "command '%s' exited with %d: ", strings.Join(command, " "), resp.ExitCode)
		}
		_, _ = w.Write(output) // the client went away
		return nil
	})
}

// parsePorts reads the ports of a port-forward: clients that speak SPDY name them later, those that speak WebSocket
// here. It is pure.
func parsePorts(query url.Values, webSocket bool) ([]int32, error) {
	var ports []int32
	for _, list := range append(query["port"], query["ports"]...) {
		for text := range strings.SplitSeq(list, ",") {
			n, err := strconv.ParseUint(text, 10, 16)
			if err != nil || n == 0 {
				return nil, refuse(http.StatusBadRequest, "port %q: want a number between 1 and 65535", text)
			}
			if ports = append(ports, int32(n)); len(ports) > maxPorts {
				return nil, refuse(http.StatusBadRequest, "more than %d ports", maxPorts)
			}
		}
	}
	if len(ports) == 0 && webSocket {
		return nil, refuse(http.StatusBadRequest, `query parameter "port" is required`)
	}
	return ports, nil
}

// PortForward joins the client to ports of a pod.
func (s *Server) PortForward() http.Handler {
	return s.handler(s.streams, func(w http.ResponseWriter, r *http.Request) error {
		ports, err := parsePorts(r.URL.Query(), isWebSocket(r))
		if err != nil {
			return err
		}
		pod, err := s.pod(r)
		if err != nil {
			return err
		}
		if !upgrades(r) {
			return errUpgrade
		}
		sandbox := s.opts.Node.Observed(pod.UID).Sandbox()
		if sandbox == nil || !sandbox.Ready {
			obs, err := s.opts.Node.Refresh(r.Context(), pod.UID)
			if err != nil {
				return err
			}
			if sandbox = obs.Sandbox(); sandbox == nil || !sandbox.Ready {
				return refuse(http.StatusInternalServerError, "pod not found (%q): it has no sandbox that runs",
					pod.Name+"_"+pod.Namespace)
			}
		}
		resp, err := s.opts.Runtime.PortForward(r.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: sandbox.ID,
			Port: ports})
		if err != nil {
			return err
		}
		return s.join(w, r, resp.Url)
	})
}
