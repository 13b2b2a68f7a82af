package stats

import (
	"iter"
	"math"
	"strconv"
	"strings"

	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"
)

// The kernel's files, as text. What does not parse is as if it were not there: kernels differ in what they tell.

// number reads a file of one number. "max" is the largest there is.
func number(text string) *uint64 {
	text = strings.TrimSpace(text)
	if text == "max" {
		return ptr.To[uint64](math.MaxUint64)
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return nil
	}
	return &n
}

// table reads lines of a name and a number: memory.stat, cpu.stat, vmstat, and meminfo, whose names end in ':'.
func table(text string) map[string]uint64 {
	out := map[string]uint64{}
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		value, _, _ := strings.Cut(strings.TrimLeft(rest, " "), " ")
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			out[strings.TrimSuffix(name, ":")] = n
		}
	}
	return out
}

// entry is the value of a name, nil where there is none.
func entry(t map[string]uint64, name string) *uint64 {
	if n, ok := t[name]; ok {
		return &n
	}
	return nil
}

// pressure reads a file of pressure stall information; nil where there is none.
func pressure(text string) *statsapi.PSIStats {
	var out statsapi.PSIStats
	some := false
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		data := &out.Some
		switch fields[0] {
		case "some":
			some = true
		case "full":
			data = &out.Full
		default:
			continue
		}
		for _, f := range fields[1:] {
			key, value, _ := strings.Cut(f, "=")
			switch key {
			case "avg10":
				data.Avg10 = percent(value)
			case "avg60":
				data.Avg60 = percent(value)
			case "avg300":
				data.Avg300 = percent(value)
			case "total": // µs
				if n := number(value); n != nil && *n <= math.MaxUint64/1000 {
					data.Total = *n * 1000
				}
			}
		}
	}
	if !some {
		return nil
	}
	return &out
}

// percent reads a share. NaN and infinity, which JSON does not know, are none.
func percent(text string) float64 {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return 0
	}
	return f
}

// hertz is the unit of the kernel's times in /proc, whatever its own clock is.
const hertz = 100

// cpuTime reads how long all CPUs have worked, in nanoseconds, from the first line of /proc/stat: without idle time,
// waiting for disks, and what others had of a virtual machine's CPU.
func cpuTime(stat string) *uint64 {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return nil
	}
	var ticks uint64
	for _, i := range []int{1, 2, 3, 6, 7} { // user, nice, system, irq, softirq
		n, err := strconv.ParseUint(fields[i], 10, 64)
		if err != nil {
			return nil
		}
		ticks += n
	}
	return ptr.To(ticks * (1e9 / hertz))
}

// tasks reads how many processes and threads there are from /proc/loadavg ("0.27 0.57 0.84 1/135 14664").
func tasks(loadavg string) *uint64 {
	fields := strings.Fields(loadavg)
	if len(fields) < 4 {
		return nil
	}
	_, all, ok := strings.Cut(fields[3], "/")
	if !ok {
		return nil
	}
	return number(all)
}

// link is the counters of an interface.
type link struct {
	name                                 string
	rxBytes, rxPackets, rxErrors, rxDrop uint64
	txBytes, txPackets, txErrors, txDrop uint64
}

// links reads /proc/net/dev, without the loopback.
func links(dev string) []link {
	var out []link
	for line := range strings.Lines(dev) {
		name, rest, ok := strings.Cut(line, ":")
		name = strings.TrimSpace(name)
		fields := strings.Fields(rest)
		if !ok || name == "lo" || len(fields) < 12 {
			continue
		}
		l := link{name: name}
		good := true
		for i, to := range map[int]*uint64{0: &l.rxBytes, 1: &l.rxPackets, 2: &l.rxErrors, 3: &l.rxDrop, 8: &l.txBytes,
			9: &l.txPackets, 10: &l.txErrors, 11: &l.txDrop} {
			n, err := strconv.ParseUint(fields[i], 10, 64)
			good = good && err == nil
			*to = n
		}
		if good {
			out = append(out, l)
		}
	}
	return out
}

// defaultLink finds the interface of the default route in /proc/net/route; "" where there is none.
func defaultLink(route string) string {
	for line := range strings.Lines(route) {
		fields := strings.Fields(line)
		if len(fields) > 7 && fields[1] == "00000000" && fields[7] == "00000000" {
			return fields[0]
		}
	}
	return ""
}

// blocks is what was read from a device and written to it, in bytes or in operations.
type blocks struct {
	device        string
	read, written uint64
}

// maxDevices bounds how many devices are reported for a container.
const maxDevices = 64

// blockIO reads what was read and written for each device: of io.stat ("8:0 rbytes=1 wbytes=2 rios=3 wios=4") under two
// names, or of blkio.throttle.io_service_bytes_recursive ("8:0 Read 1").
func blockIO(text, reads, writes string) []blocks {
	var out []blocks
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || !strings.Contains(fields[0], ":") {
			continue
		}
		if len(out) == 0 || out[len(out)-1].device != fields[0] {
			if len(out) == maxDevices {
				return out
			}
			out = append(out, blocks{device: fields[0]})
		}
		b := &out[len(out)-1]
		for key, value := range assignments(fields[1:]) {
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				continue
			}
			switch key {
			case reads, "Read":
				b.read = n
			case writes, "Write":
				b.written = n
			}
		}
	}
	return out
}

// devices reads the names of block devices by their numbers ("8:0") from /proc/partitions. A device without a name has
// none.
func devices(partitions string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(partitions) {
		fields := strings.Fields(line)
		if len(fields) == 4 && number(fields[0]) != nil && number(fields[1]) != nil {
			out[fields[0]+":"+fields[1]] = "/dev/" + fields[3]
		}
	}
	return out
}

// assignments yields "a=1 b=2" and "a 1" alike.
func assignments(fields []string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		if len(fields) == 2 && !strings.Contains(fields[0], "=") {
			yield(fields[0], fields[1])
			return
		}
		for _, f := range fields {
			if key, value, ok := strings.Cut(f, "="); ok && !yield(key, value) {
				return
			}
		}
	}
}
