package vm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"github.com/edgecore-io/edgecore/test/vm/guestapi"
)

// nic is how qemu knows the machine's network card.
const nic = "nic"

// args is the command line of qemu. The disk bypasses the host's cache, so that what the machine has not
// flushed is lost with its power.
func (m *VM) args() []string {
	args := append(slices.Clone(m.board.machine),
		"-smp", strconv.Itoa(m.opts.CPUs), "-m", strconv.Itoa(m.opts.MemoryMB),
		"-nodefaults", "-no-user-config", "-display", "none",
		"-kernel", m.image.Kernel, "-initrd", m.image.Initrd,
		"-append", "root=/dev/vda rw console="+m.board.console+" net.ifnames=0 mitigations=off random.trust_cpu=on "+
			m.opts.Append,
		"-chardev", "file,id=console,append=on,path="+m.Console(), "-serial", "chardev:console",
		"-drive", "if=none,id=disk,format=qcow2,cache=none,file="+m.overlay(), "-device", "virtio-blk-pci,drive=disk",
		"-drive", "if=none,id=payload,format=raw,readonly=on,file="+m.payload(), "-device",
		"virtio-blk-pci,drive=payload",
		"-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
		"-chardev", "socket,id=agent,server=on,wait=off,path="+m.socket(), "-device",
		"virtserialport,chardev=agent,name="+guestapi.Port,
	)
	if !m.opts.Network {
		return append(args, "-nic", "none")
	}
	// It waits to be told whether its cable is in before it runs.
	return append(args, "-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile=,id="+nic, "-qmp",
		"unix:"+m.monitor()+",server=on,wait=off", "-S")
}

// process is a program that dies with this one, however this one ends.
type process struct {
	pid  int
	done chan struct{} // closed when it has been reaped
}

func start(program string, args []string, logFile string) (*process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &process{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel sends the death signal when the thread that started the program ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer log.Close()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		p.pid = cmd.Process.Pid
		started <- nil
		_ = cmd.Wait() // how it ended is in its log
		close(p.done)
	}()
	if err := <-started; errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("%w; `hack/setup vm` installs it", err)
	} else if err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill ends the program at once and waits until it is gone.
func (p *process) kill() error {
	if !p.running() {
		return nil
	}
	if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	<-p.done
	return nil
}
