package peer

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Entry is what the cloud knows of one object. Versions are resource versions, 0 is none.
type Entry struct {
	// Sent is the newest version that was sent, or may have been; Acked the newest that the edge said it has.
	Sent, Acked int
	// Ending is the first version of a pod that says that it is to end; 0: it is to run. What of it is stored then is
	// between edge and cloud.
	Ending int
	// Deleted: it is gone here. DeleteSent and DeleteAcked are as Sent and Acked.
	Deleted, DeleteSent, DeleteAcked bool
	// Finished: the edge reported that the pod has ended for good.
	Finished bool
}

// Journal is what the cloud knows of all objects, by their names on the wire.
type Journal map[string]Entry

// Stored is an object that a device has.
type Stored struct {
	Version int
	// Ending: it is a pod that is to end.
	Ending bool
}

// Wrong compares what a device has with what it acknowledged before, and says in sentences what does not fit: what is
// lost, what came back, and what nobody ever sent.
func (j Journal) Wrong(has map[string]Stored) []string {
	var wrong []string
	for _, name := range slices.Sorted(maps.Keys(j)) {
		e := j[name]
		s, there := has[name]
		switch ended := e.Ending > 0 && e.Sent >= e.Ending; {
		case there && s.Version > e.Sent:
			wrong = append(wrong, fmt.Sprintf("%s is stored in version %d, and the newest that was sent is %d", name,
				s.Version, e.Sent))
		case e.DeleteAcked && there:
			wrong = append(wrong, fmt.Sprintf("%s is back: its deletion was acknowledged", name))
		case !there && e.Acked > 0 && !e.DeleteSent && !ended:
			wrong = append(wrong, fmt.Sprintf("%s is lost: version %d was acknowledged", name, e.Acked))
		case there && s.Version < e.Acked:
			wrong = append(wrong, fmt.Sprintf("%s is stored in version %d, and %d was acknowledged", name, s.Version,
				e.Acked))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(has)) {
		if _, known := j[name]; !known {
			wrong = append(wrong, name+" is stored, and was never sent")
		}
	}
	return wrong
}

// Tally counts what was sent, what of it was acknowledged, and what was on its way.
type Tally struct{ Acked, OnTheWay, Finished int }

// Tally counts the objects.
func (j Journal) Tally() Tally {
	var t Tally
	for _, e := range j {
		if e.Acked > 0 {
			t.Acked++
		}
		if e.Sent > e.Acked || e.DeleteSent && !e.DeleteAcked {
			t.OnTheWay++
		}
		if e.Finished {
			t.Finished++
		}
	}
	return t
}

// Live are the names of a type's objects that are to be there, sorted; of pods those that are not to end.
func (j Journal) Live(typ string) []string {
	var names []string
	for name, e := range j {
		if key, err := resource.Parse(name); err == nil && key.Type == typ && !e.Deleted && e.Ending == 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (t Tally) String() string {
	parts := []string{fmt.Sprintf("%d objects acknowledged", t.Acked), fmt.Sprintf("%d on their way", t.OnTheWay),
		fmt.Sprintf("%d pods finished", t.Finished)}
	return strings.Join(parts, ", ")
}
