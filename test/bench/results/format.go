package results

import "strconv"

// Format formats a number with its unit for readers.
func Format(unit Unit, value float64) string {
	switch unit {
	case Seconds:
		if value < 0.1 {
			return strconv.FormatFloat(value*1000, 'f', 0, 64) + " ms"
		}
		return digits(value) + " s"
	case Percent:
		return digits(value) + " %"
	case Bytes:
		return size(value)
	case BytesAMinute:
		return size(value) + "/min"
	}
	return digits(value)
}

// FormatTick formats a round number for an axis.
func FormatTick(unit Unit, value float64) string {
	if value == 0 {
		return "0"
	}
	plain := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	switch {
	case unit == Seconds && value < 0.1:
		return plain(Round(value*1000)) + " ms"
	case unit == Seconds:
		return plain(Round(value)) + " s"
	case unit == Percent:
		return plain(Round(value)) + " %"
	case value >= 1e6:
		return plain(Round(value/1e6)) + " MB"
	case value >= 1e3:
		return plain(Round(value/1e3)) + " KB"
	}
	return plain(Round(value)) + " B"
}

// digits formats a number with three significant digits.
func digits(value float64) string {
	switch {
	case value == 0:
		return "0"
	case value >= 100:
		return strconv.FormatFloat(value, 'f', 0, 64)
	case value >= 10:
		return strconv.FormatFloat(value, 'f', 1, 64)
	case value >= 1:
		return strconv.FormatFloat(value, 'f', 2, 64)
	}
	return strconv.FormatFloat(value, 'f', 3, 64)
}

func size(value float64) string {
	switch {
	case value == 0:
		return "0 bytes"
	case value >= 1e6:
		return strconv.FormatFloat(value/1e6, 'f', 1, 64) + " MB"
	case value >= 1e3:
		return strconv.FormatFloat(value/1e3, 'f', 1, 64) + " KB"
	}
	return strconv.FormatFloat(value, 'f', 0, 64) + " bytes"
}
