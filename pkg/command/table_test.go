package command

import "testing"

func TestTable(t *testing.T) {
	got := Table([2]string{"/etc/a", "the first"}, [2]string{"/var/lib/b", "the second"})
	if want := "  /etc/a       the first\n  /var/lib/b   the second"; got != want {
		t.Errorf("Table = %q, want %q", got, want)
	}
	if got := Table(); got != "" {
		t.Errorf("Table() = %q, want nothing", got)
	}
}
