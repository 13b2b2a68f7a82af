package devicetwin

import (
	"math"
	"strconv"
	"time"

	"github.com/edgecore-io/edgecore/devicetwin/twin"
)

// The values of the last minutes are kept in memory, for plots: up to historyPoints of each of historyProperties, one
// every historyStep.
const (
	historyPoints     = 60
	historyStep       = 5 * time.Second
	historyProperties = 200
)

// Point is a number that was reported.
type Point struct {
	At    time.Time
	Value float64
}

// history has the last numbers of properties, by NAMESPACE/NAME/PROPERTY.
type history map[string][]Point

// add records the reported values that are numbers.
func (h history) add(device string, reports []twin.Report, now time.Time) {
	for _, r := range reports {
		n, err := strconv.ParseFloat(r.Value, 64)
		if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
			continue
		}
		key := device + "/" + r.Name
		points, known := h[key]
		switch last := len(points) - 1; {
		case !known && len(h) >= historyProperties:
			continue
		case last >= 0 && now.Before(points[last].At): // the clock was set back
			points = points[:0]
		case last >= 0 && now.Sub(points[last].At) < historyStep:
			points[last].Value = n
			continue
		case len(points) == historyPoints:
			points = append(points[:0], points[1:]...)
		}
		h[key] = append(points, Point{now, n})
	}
}

// remove forgets a device.
func (h history) remove(device string) {
	for key := range h {
		if len(key) > len(device) && key[:len(device)] == device && key[len(device)] == '/' {
			delete(h, key)
		}
	}
}

// Recent returns the numbers that a property has had in the last minutes, the oldest first.
func (m *Module) Recent(namespace, name, property string) []Point {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Point(nil), m.history[id(namespace, name)+"/"+property]...)
}
