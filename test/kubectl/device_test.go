package kubectl

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// exec runs a command in the pod web, from the device.
func (n *node) exec(t *testing.T, command ...string) (string, error) {
	out, err := n.execCommand(t, []string{"-c", "main", "web"}, command...).CombinedOutput()
	return string(out), err
}

func (n *node) execCommand(t *testing.T, flags []string, command ...string) *exec.Cmd {
	args := append([]string{"exec", "--config", n.Config()}, flags...)
	return exec.CommandContext(t.Context(), n.Binary, append(append(args, "--"), command...)...)
}

// testTerminal types into a shell of a container, at the device.
func (n *node) testTerminal(t *testing.T) {
	mine, theirs := terminal(t)
	env.Must(t, unix.IoctlSetWinsize(int(theirs.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 33, Col: 99}))
	before, err := unix.IoctlGetTermios(int(theirs.Fd()), unix.TCGETS)
	env.Must(t, err)
	cmd := n.execCommand(t, []string{"-it", "-c", "main", "web"}, "sh")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	env.Must(t, cmd.Start())
	lines := make(chan string, 100)
	go func() { // ends with the terminal
		r := bufio.NewScanner(mine)
		for r.Scan() {
			lines <- r.Text()
		}
	}()
	_, err = mine.WriteString("until stty size | grep -qx '33 99'; do sleep 0.1; done; echo sum $((40+2)); exit 4\n")
	env.Must(t, err)
	var seen []string
	for !strings.Contains(strings.Join(seen, "\n"), "sum 42") {
		seen = append(seen, wait.Receive(t, fmt.Sprintf("a line with sum 42 after %q", seen), lines))
	}
	if err := cmd.Wait(); err == nil || err.Error() != "exit status 4" {
		t.Errorf("%v, want exit status 4", err)
	}
	after, err := unix.IoctlGetTermios(int(theirs.Fd()), unix.TCGETS)
	env.Must(t, err)
	if *after != *before {
		t.Errorf("settings of the terminal = %+v, want %+v as before", *after, *before)
	}
	if out, err := n.execCommand(t, []string{"-t", "-c", "main", "web"}, "ls").CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "not a terminal") {
		t.Errorf("exec -t without a terminal: %v, %q, want an error with %q", err, out, "not a terminal")
	}
}

// terminal makes a terminal and returns its two ends.
func terminal(t *testing.T) (mine, theirs *os.File) {
	t.Helper()
	mine, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	env.Must(t, err)
	t.Cleanup(func() { mine.Close() })
	env.Must(t, unix.IoctlSetPointerInt(int(mine.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(mine.Fd()), unix.TIOCGPTN)
	env.Must(t, err)
	theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	env.Must(t, err)
	t.Cleanup(func() { theirs.Close() })
	return mine, theirs
}
