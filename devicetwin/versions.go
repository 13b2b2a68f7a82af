package devicetwin

import (
	"encoding/json"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/devicetwin/twin"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/devicemsg"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// numberingKey is the key of the row with the epoch and the reserved versions. typeEpoch keeps it out of the list of
// twins.
const (
	numberingKey = resource.NullNamespace + "/" + resource.TypeDeviceTwin + "/versions"
	typeEpoch    = resource.TypeDeviceTwin + "epoch"
)

// reserved is how many versions are given out between two writes of the reservation.
const reserved = 1 << 32

// numbering gives the changes of all twins of the store their versions: an epoch and a number. Versions of one epoch
// are given out once. To write none for each change, it reserves many in the store: a run begins above what the run
// before reserved. A store without a readable reservation gets a new epoch, since it is unknown which numbers were
// sent.
type numbering struct {
	epoch string
	twin.Counter
	// stored is the reservation in the store. It is zero until this run has written one.
	stored reservation
}

// reservation is the row in the store: no number above Reserved was given out.
type reservation struct {
	Epoch    string `json:"epoch"`
	Reserved int64  `json:"reserved"`
}

// resumeNumbering continues from the row of the store; it may be missing or invalid.
func resumeNumbering(row []byte) numbering {
	var r reservation
	if err := json.Unmarshal(row, &r); err != nil || r.Epoch == "" {
		return numbering{epoch: newEpoch()}
	}
	return numbering{epoch: r.Epoch, Counter: twin.Counter{Last: r.Reserved}}
}

func newEpoch() string { return model.NewID()[:8] }

// renew begins a new epoch. The numbers go on, since twins have values with earlier numbers.
func (n *numbering) renew() { n.epoch = newEpoch() }

// maySend reports whether all numbers are reserved: versions may be sent then.
func (n *numbering) maySend() bool { return n.stored.Epoch == n.epoch && n.Last <= n.stored.Reserved }

// reserve returns the operations that reserve more versions, if it is time, and the reservation that is in the store
// afterwards.
func (n *numbering) reserve() ([]store.Op, reservation) {
	if n.stored.Epoch == n.epoch && n.Last+reserved/2 <= n.stored.Reserved {
		return nil, n.stored
	}
	r := reservation{Epoch: n.epoch, Reserved: n.Last + reserved}
	data, err := json.Marshal(r)
	if err != nil { // strings and numbers always encode
		panic(err)
	}
	return []store.Op{store.Upsert(store.Meta{Key: numberingKey, Type: typeEpoch, Value: data})}, r
}

// fellBehind reports whether the API has a version of this epoch that this store has not given out.
func (n *numbering) fellBehind(o *devicemsg.Outdated) bool {
	ahead := func(version string) bool {
		epoch, number, ok := devicemsg.ParseVersion(version)
		return ok && epoch == n.epoch && number > n.Last
	}
	for _, versions := range []map[string]string{o.Values, o.Desired} {
		for _, version := range versions {
			if ahead(version) {
				return true
			}
		}
	}
	return ahead(o.State)
}
