package repair

import (
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/podstate/clock"
)

// RecordThisBoot opens the record in the agent's folder for the current boot. It always returns a usable record, and
// logs what could not be read or written.
func RecordThisBoot(dir string) *Record {
	boot, err := clock.ReadBoot()
	if err != nil {
		klog.ErrorS(err, "It is unknown whether the device was shut down cleanly")
	}
	r, err := OpenRecord(dir, boot.ID)
	if err != nil {
		klog.ErrorS(err, "The list of verified images is lost when the agent stops")
	}
	if r.Unclean() {
		klog.InfoS("The device lost power; when a container fails, its image is compared with the layers that it was " +
			"unpacked from")
	}
	return r
}
