package localexec

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/edgecore-io/edgecore/edged/serve/streaming/channels"
)

// openPTY returns the end of a new pseudoterminal that a program sees.
func openPTY(t *testing.T) *os.File {
	t.Helper()
	controller, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { controller.Close() })
	if err := unix.IoctlSetPointerInt(int(controller.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(controller.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestTerminal(t *testing.T) {
	f := openPTY(t)
	fd := int(f.Fd())
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: 132, Row: 43}); err != nil {
		t.Fatal(err)
	}
	echoes := func() bool {
		state, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		return state.Lflag&unix.ECHO != 0
	}
	terminal, err := openTerminal(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := <-terminal.sizes, (channels.Size{Width: 132, Height: 43}); got != want {
		t.Errorf("size = %+v, want %+v", got, want)
	}
	if echoes() {
		t.Error("the terminal echoes while it is open, want raw mode")
	}
	terminal.restore()
	if !echoes() {
		t.Error("the terminal does not echo after restore, want the mode of before")
	}
}

func TestNoTerminal(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	const want = "the input is not a terminal; leave out -t"
	if _, err := openTerminal(t.Context(), null); err == nil || err.Error() != want {
		t.Errorf("%s: err = %v, want %s", os.DevNull, err, want)
	}
	if _, err := openTerminal(t.Context(), strings.NewReader("")); err == nil || err.Error() != want {
		t.Errorf("a reader: err = %v, want %s", err, want)
	}
}
