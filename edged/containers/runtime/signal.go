package runtime

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The first and the last of the real-time signals, as C libraries give them out.
const (
	sigRTMin = 34
	sigRTMax = 64
)

// stopSignalOf is the signal by which a container asks to be stopped; "" leaves it to its image.
func stopSignalOf(c *v1.Container) v1.Signal {
	if c == nil || c.Lifecycle == nil || c.Lifecycle.StopSignal == nil {
		return ""
	}
	return *c.Lifecycle.StopSignal
}

// criSignal is the CRI's form of a signal; unknown ones are left to the runtime.
func criSignal(s v1.Signal) runtimeapi.Signal {
	name := strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(string(s))
	return runtimeapi.Signal(runtimeapi.Signal_value["SIGNAL_"+name])
}

// signalName is the API's form of a signal of the CRI; "" for the runtime's default.
func signalName(s runtimeapi.Signal) string {
	if s == runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		return ""
	}
	name := strings.TrimPrefix(s.String(), "SIGNAL_")
	return strings.NewReplacer("PLUS", "+", "MINUS", "-").Replace(name)
}

// unixSignal is the number of a signal on this machine; 0 when it is unknown.
func unixSignal(s v1.Signal) unix.Signal {
	switch name := string(s); {
	case name == "SIGCLD":
		return unix.SIGCHLD
	case name == "SIGPOLL":
		return unix.SIGIO
	case strings.HasPrefix(name, "SIGRTMIN"), strings.HasPrefix(name, "SIGRTMAX"):
		base := sigRTMin
		if strings.HasPrefix(name, "SIGRTMAX") {
			base = sigRTMax
		}
		offset := 0
		if rest := name[len("SIGRTMIN"):]; rest != "" {
			n, err := strconv.Atoi(rest) // "+3", "-3"
			if err != nil {
				return 0
			}
			offset = n
		}
		if n := base + offset; n >= sigRTMin && n <= sigRTMax {
			return unix.Signal(n)
		}
		return 0
	default:
		return unix.SignalNum(name)
	}
}
