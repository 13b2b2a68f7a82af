// Package preflight checks a device, before the agent runs on it or while it does, and explains in plain words what
// would keep pods from running and what to do about it. Collect changes nothing on the device; the Facts that it finds
// are judged by pure functions (Check).
package preflight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/edgecore-io/edgecore/edged/podstate/clock"
)

// Level says how much a finding matters.
type Level string

// The levels.
const (
	// OK: nothing is to be done.
	OK Level = "ok"
	// Warning: pods run, and something that some of them need does not.
	Warning Level = "warning"
	// Error: pods do not run.
	Error Level = "error"
)

// Finding is what is to be said of one thing.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	Text  string `json:"text"`
	// Remedy says what to do; "" where nothing is.
	Remedy string `json:"remedy,omitempty"`
}

// Facts are what was found.
type Facts struct {
	// Root: the agent may do what it needs to.
	Root    bool
	Kernel  string
	Memory  int64 // bytes
	Runtime Runtime
	Cgroups Cgroups
	CNI     CNI
	Clock   Clock
	Ports   []Port
	Disks   []Disk
	Cloud   Cloud
}

// Runtime is the container runtime.
type Runtime struct {
	Endpoint string
	// Socket says why the socket is missing; nil if it exists.
	Socket error
	// Err is what asking for the version led to. Unknown: the runtime does not know CRI v1.
	Err           error
	Unknown       bool
	Name, Version string
	// NotReady says why it is not ready; "" that it is.
	NotReady string
	// ImageEndpoint is the socket of the image service; "" is Endpoint. ImagesErr says why it does not work.
	ImageEndpoint string
	ImagesErr     error
	// Driver is the cgroup driver that it says it has; "" where it does not say.
	Driver string
}

// Cgroups are the kernel's.
type Cgroups struct {
	// Version is "v1" or "v2".
	Version string
	// Missing are the controllers, of cpu, memory and pids, that the kernel does not offer.
	Missing []string
	// Driver is the one of the configuration; Systemd: systemd runs this device.
	Driver  string
	Systemd bool
}

// CNI is the network of pods.
type CNI struct {
	// NotReady is what the runtime says; "" that it has a network. Asked: it said something at all.
	Asked    bool
	NotReady string
	// Dir is the folder of configurations, Files what is in it, Bins where the plugins are looked for.
	Dir   string
	Files []string
	Bins  []string
	// Missing are the plugins that the configuration names and that are not there; Broken says why it cannot be read.
	Missing []string
	Broken  error
}

// Clock is the wall clock.
type Clock struct {
	Now          time.Time
	Synchronized bool
	Bound        clock.Bound
}

// Port is one that the agent listens on.
type Port struct {
	// What it is for, and the key that changes it.
	What, Key string
	Address   string
	// Err says why the port is not free; nil if it is. Holder is the process that listens on it ("kubelet (pid 123)");
	// Own: it is the agent itself.
	Err    error
	Holder string
	Own    bool
}

// Disk is a file system that the agent writes to.
type Disk struct {
	// What lies there, and where.
	What, Path string
	// Err says why it cannot be read or written.
	Err                error
	Size, Free         int64 // bytes
	Inodes, FreeInodes int64
	ReadOnly           bool
}

// Cloud is the way to the cloud.
type Cloud struct {
	// Joined: the device has a certificate for it.
	Joined bool
	Server string
	// Err says why it cannot be reached.
	Err error
}

// Check judges all of the facts, in the order in which things are needed.
func Check(f *Facts) []Finding {
	return slices.Concat(host(f), containerRuntime(&f.Runtime), imageService(&f.Runtime),
		cgroup(&f.Cgroups, f.Runtime.Driver), network(&f.CNI), wallClock(&f.Clock),
		ports(f.Ports), disks(f.Disks), cloud(&f.Cloud))
}

// Worst is the worst level of the findings.
func Worst(all []Finding) Level {
	worst := OK
	for _, f := range all {
		switch {
		case f.Level == Error:
			return Error
		case f.Level == Warning:
			worst = Warning
		}
	}
	return worst
}

// lowMemory is what a device needs for the agent, a runtime and a small pod, in bytes.
const lowMemory = 192 << 20

func host(f *Facts) []Finding {
	var list []Finding
	if !f.Root {
		list = append(list, Finding{"user", Error, "this is not root: the agent cannot make cgroups and mounts",
			"Run it as root; the service of the package does."})
	}
	text := fmt.Sprintf("Linux %s, %d MiB of memory", cmp.Or(f.Kernel, "of an unknown version"), f.Memory>>20)
	switch {
	case before(f.Kernel, 5, 3):
		list = append(list, Finding{
			"device", Warning,
			text + ": the kernel is older than 5.3: exits of containers are noticed only by polling",
			"Use a newer kernel if pods are to be restarted within a second.",
		})
	case f.Memory > 0 && f.Memory < lowMemory:
		list = append(list, Finding{
			"device", Warning, text + ": that is little for the agent, a container runtime and pods",
			"Use small images, give containers memory limits, and have swap on zram.",
		})
	default:
		list = append(list, Finding{"device", OK, text, ""})
	}
	return list
}

// before reports whether a kernel's version is older than another; one that cannot be read is not.
func before(release string, major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(release, "%d.%d", &a, &b); n != 2 {
		return false
	}
	return a < major || a == major && b < minor
}

func containerRuntime(r *Runtime) []Finding {
	const check = "container runtime"
	const key = "containerRuntimeEndpoint"
	at := strings.TrimPrefix(r.Endpoint, "unix://")
	switch {
	case r.Socket != nil:
		return []Finding{
			{
				check, Error, fmt.Sprintf("there is no runtime at %s: %v", at, r.Socket),
				"Install one and start it (apt-get install containerd; systemctl enable --now containerd), or set " +
					key + " to the socket of the one that is there.",
			},
		}
	case r.Unknown:
		return []Finding{
			{
				check, Error, fmt.Sprintf("what listens at %s does not speak CRI v1", at),
				"With containerd, see that version 1.6 or newer runs, and that \"cri\" is not among disabled_plugins " +
					"in /etc/containerd/config.toml (Docker's package puts it there); then restart it. cri-dockerd " +
					"has to be 0.3 or newer.",
			},
		}
	case r.Err != nil:
		return []Finding{{check, Error, fmt.Sprintf("the runtime at %s does not answer: %v", at, r.Err),
			"See whether it runs and what it logs: systemctl status containerd; journalctl -u containerd."}}
	case r.NotReady != "":
		return []Finding{
			{check, Error, fmt.Sprintf("%s %s at %s says that it is not ready: %s", r.Name, r.Version, at, r.NotReady),
				"See what it logs: journalctl -u containerd."},
		}
	}
	return []Finding{{check, OK, fmt.Sprintf("%s %s at %s, CRI v1", r.Name, r.Version, at), ""}}
}

// imageService is about a socket for images of its own. Its text begins with the key.
func imageService(r *Runtime) []Finding {
	if r.ImagesErr == nil {
		return nil
	}
	return []Finding{
		{
			"images", Error, fmt.Sprintf("imageServiceEndpoint: there is no image service at %s: %v",
				strings.TrimPrefix(r.ImageEndpoint, "unix://"), r.ImagesErr),
			"Remove the key, so that the container runtime is asked, or see whether that service runs.",
		},
	}
}

func cgroup(c *Cgroups, runtimes string) []Finding {
	list := []Finding{{"cgroups", OK, fmt.Sprintf("cgroup %s, driver %s", c.Version, c.Driver), ""}}
	if len(c.Missing) > 0 {
		list[0].Level = Warning
		list[0].Text =
			fmt.Sprintf("cgroup %s; the kernel offers no %s controller: pods run, and limits on it are not enforced",
				c.Version, strings.Join(c.Missing, " and no "))
		list[0].Remedy = fmt.Sprintf("Add cgroup_enable=%s to the kernel's command line and reboot.", c.Missing[0])
		if slices.Contains(c.Missing, "memory") {
			list[0].Remedy = "Add \"cgroup_enable=memory cgroup_memory=1\" to the kernel's command line (on a " +
				"Raspberry Pi the one line of /boot/firmware/cmdline.txt, or /boot/cmdline.txt) and reboot."
		}
	}
	switch {
	case c.Driver == "systemd" && !c.Systemd:
		list = append(list, Finding{
			"cgroup driver", Error, "cgroupDriver is systemd, and systemd does not run this device",
			"Set cgroupDriver: cgroupfs, and SystemdCgroup = false in the runtime's configuration.",
		})
	case runtimes != "" && runtimes != c.Driver:
		list = append(list, Finding{
			"cgroup driver", Error,
			fmt.Sprintf("cgroupDriver is %s, and the runtime's is %s: pods do not start, or without their limits",
				c.Driver, runtimes),
			fmt.Sprintf("Set cgroupDriver: %s in the configuration (or the runtime's to %s: SystemdCgroup in "+
				"/etc/containerd/config.toml).", runtimes, c.Driver),
		})
	}
	return list
}

func network(c *CNI) []Finding {
	const check = "pod network"
	if !c.Asked {
		return nil // the runtime's own finding says why
	}
	const alone = ": pods with hostNetwork run, others wait"
	bad := func(text, remedy string) []Finding { return []Finding{{check, Warning, text + alone, remedy}} }
	dir := cmp.Or(c.Dir, "/etc/cni/net.d")
	switch {
	case c.Broken != nil:
		return bad(fmt.Sprintf("the CNI configuration %s is invalid: %v", c.Files[0], c.Broken),
			"Correct the file; the runtime notices.")
	case len(c.Missing) > 0:
		return bad(fmt.Sprintf("the CNI configuration %s names plugins that are not in %s: %s", c.Files[0],
			strings.Join(c.Bins, ", "), strings.Join(c.Missing, ", ")),
			"Install them (apt-get install containernetworking-plugins puts them into /usr/lib/cni; the runtime's "+
				"bin_dir has to be that folder).")
	case c.NotReady != "" && len(c.Files) == 0:
		return bad("there is no CNI configuration in "+dir,
			"Put one there, such as that of the network plugin that the cluster uses; the runtime notices.")
	case c.NotReady != "":
		return bad("the runtime has no network for pods: "+c.NotReady, "See "+dir+", and what the runtime logs.")
	}
	text := "the runtime has a network for pods"
	if len(c.Files) > 0 {
		text += ", of " + c.Files[0]
	}
	return []Finding{{check, OK, text, ""}}
}

func wallClock(c *Clock) []Finding {
	now := c.Now.UTC().Format(time.RFC3339)
	const remedy = "Set it, or have a time server keep it: timedatectl set-ntp true, or date -s."
	if why := clock.Doubt(c.Now, c.Synchronized, c.Bound); why != "" {
		return []Finding{
			{"clock", Warning, "the clock is not set: " + why + ". Pods run; the cloud may not be reached", remedy},
		}
	}
	if !c.Synchronized {
		return []Finding{{"clock", Warning, now + ", which no time server keeps: it will drift", remedy}}
	}
	return []Finding{{"clock", OK, now + ", kept by a time server", ""}}
}

func ports(all []Port) []Finding {
	var list []Finding
	for _, p := range all {
		f := Finding{"port of " + p.What, OK, p.Address + " is free", ""}
		switch {
		case p.Own:
			f.Text = p.Address + " is the agent's, which runs"
		case p.Err != nil && p.Holder != "":
			f.Level, f.Text = Error, fmt.Sprintf("%s is taken by %s", p.Address, p.Holder)
			f.Remedy =
				fmt.Sprintf("Stop that (a kubelet and this agent cannot share a device), or change %s in the "+
					"configuration.", p.Key)
		case p.Err != nil:
			f.Level, f.Text = Error, fmt.Sprintf("%s cannot be used: %v", p.Address, p.Err)
			f.Remedy = fmt.Sprintf("Change address or %s in the configuration.", p.Key)
		}
		list = append(list, f)
	}
	return list
}

// What is little room on a disk, in bytes, and as a part of it: below a tenth, and a twentieth of the inodes, kubelets
// evict pods.
const (
	roomLeast  = 64 << 20
	part       = 10
	partInodes = 20
)

func disks(all []Disk) []Finding {
	var list []Finding
	for _, d := range all {
		f := Finding{
			"disk of " + d.What, OK, fmt.Sprintf("%s has %d MiB of %d MiB free", d.Path, d.Free>>20, d.Size>>20), "",
		}
		switch {
		case d.Err != nil:
			f.Level, f.Text, f.Remedy = Error, fmt.Sprintf("%s cannot be used: %v", d.Path, d.Err),
				"Make the folder, or mount the disk that it is to be on."
		case d.ReadOnly:
			f.Level, f.Text, f.Remedy = Error, d.Path+" is read-only", "Mount it for writing (mount -o remount,rw); "+
				"look at the kernel's log for errors of the disk if it was."
		case d.Free < roomLeast:
			f.Level, f.Text, f.Remedy = Error, f.Text+": that is not enough to run pods",
				"Make room, or use a larger disk."
		case d.Free < d.Size/part:
			f.Level, f.Text, f.Remedy = Warning, f.Text+": pods may be evicted",
				"Free space (edgecore images prune removes unused images), or use a larger disk."
		case d.Inodes > 0 && d.FreeInodes < d.Inodes/partInodes:
			f.Level, f.Text, f.Remedy = Warning, fmt.Sprintf("%s has %d of %d inodes free: pods may be evicted", d.Path,
				d.FreeInodes, d.Inodes), "Remove small files, or recreate the file system with more inodes."
		}
		list = append(list, f)
	}
	return list
}

func cloud(c *Cloud) []Finding {
	switch {
	case !c.Joined:
		return []Finding{{"cloud", OK, "this device has joined none, and runs its own pods", ""}}
	case c.Err != nil:
		return []Finding{
			{
				"cloud", Warning, fmt.Sprintf("%s cannot be reached: %v. Pods run on", c.Server, c.Err),
				"See the device's network, name server and routes, and firewalls on the way; that cloudcore runs " +
					"there.",
			},
		}
	}
	return []Finding{{"cloud", OK, c.Server + " can be reached", ""}}
}
