package clock

import "testing"

func TestReadBoot(t *testing.T) {
	first, err := ReadBoot()
	if err != nil {
		t.Fatal(err)
	}
	second, err := ReadBoot()
	if err != nil {
		t.Fatal(err)
	}
	if first.ID == "" || first.ID != second.ID || first.Uptime <= 0 || second.Uptime < first.Uptime {
		t.Errorf("ReadBoot() twice = %+v, %+v; want the same ID and an uptime that grows", first, second)
	}
}
