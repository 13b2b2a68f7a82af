package main

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/edgecore-io/edgecore/mappers/mapper"
	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
)

// swap puts the bytes of a value into the order of the wire, or back.
func (v *visitor) swap(data []byte) []byte {
	out := make([]byte, len(data))
	for i := 0; i+1 < len(data); i += 2 {
		at := i
		if v.IsRegisterSwap {
			at = len(data) - 2 - i
		}
		out[at], out[at+1] = data[i], data[i+1]
		if v.IsSwap {
			out[at], out[at+1] = data[i+1], data[i]
		}
	}
	return out
}

// layout is how registers hold a number.
type layout int

const (
	whole layout = iota
	float32s
	float64s
)

// layout returns how the registers hold a number of a type.
func (v *visitor) layout(kind string) (layout, error) {
	isReal := kind == devices.TypeFloat || kind == devices.TypeDouble
	switch {
	case isReal && v.Limit == 2:
		return float32s, nil
	case isReal && v.Limit == 4:
		return float64s, nil
	case v.Limit == 1 || v.Limit == 2 || v.Limit == 4:
		return whole, nil
	}
	return whole, fmt.Errorf("visitors.configData.limit %d: a number has 1, 2 or 4 registers", v.Limit)
}

// decode returns the value of v.Limit registers, by the type of the property.
func (v *visitor) decode(kind string, raw []byte) (string, error) {
	data := v.swap(raw)
	kind = strings.ToUpper(kind)
	switch kind {
	case devices.TypeString:
		return strings.TrimRight(strings.ToValidUTF8(string(data), "?"), "\x00 "), nil
	case devices.TypeBytes:
		return hex.EncodeToString(data), nil
	case devices.TypeBoolean:
		return strconv.FormatBool(strings.Trim(string(data), "\x00") != ""), nil
	}
	as, err := v.layout(kind)
	if err != nil {
		return "", err
	}
	var read float64
	bits := 64
	switch as {
	case whole:
		return v.number(kind, new(big.Rat).SetInt(v.integer(data)), bits)
	case float32s:
		read, bits = float64(math.Float32frombits(binary.BigEndian.Uint32(data))), 32
	case float64s:
		read = math.Float64frombits(binary.BigEndian.Uint64(data))
	}
	if math.IsNaN(read) || math.IsInf(read, 0) {
		return strconv.FormatFloat(read*v.Scale, 'g', -1, bits), nil // what many devices have in place of a value
	}
	return v.number(kind, decimal(read, bits), bits)
}

// number returns the text of a number that was read.
func (v *visitor) number(kind string, read *big.Rat, bits int) (string, error) {
	n := read.Mul(read, decimal(v.Scale, 64))
	if kind == devices.TypeInt || n.IsInt() && bits == 64 && n.Num().BitLen() <= 64 {
		return round(n).String(), nil
	}
	f, _ := n.Float64()
	if bits == 32 {
		short, _ := n.Float32()
		f = float64(short)
	}
	if math.IsInf(f, 0) {
		return "", fmt.Errorf("the value is out of range with visitors.configData.scale %v", v.Scale)
	}
	style := byte('f') // without an exponent, as long as that is short
	if size := math.Abs(f); size != 0 && (size < 1e-6 || size >= 1e21) {
		style = 'g'
	}
	return strconv.FormatFloat(f, style, -1, bits), nil
}

// decimal returns the shortest decimal that means a finite floating-point number, such as 0.1: ten times that is 1.
func decimal(f float64, bits int) *big.Rat {
	r, _ := new(big.Rat).SetString(strconv.FormatFloat(f, 'g', -1, bits)) // the text of a number is one
	return r
}

// round returns the nearest whole number; a half is rounded away from zero.
func round(r *big.Rat) *big.Int {
	half := big.NewRat(int64(r.Sign()), 2)
	sum := new(big.Rat).Add(r, half)
	return new(big.Int).Quo(sum.Num(), sum.Denom()) // truncates
}

// integer returns the whole number in 1, 2 or 4 registers.
func (v *visitor) integer(data []byte) *big.Int {
	n := new(big.Int).SetBytes(data)
	if bits := len(data) * 8; !v.Unsigned && n.Bit(bits-1) == 1 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(bits)))
	}
	return n
}

func parseBool(value string) (bool, error) {
	on, err := strconv.ParseBool(strings.ToLower(value))
	if err != nil {
		return false, fmt.Errorf("value %.64q: want true or false", value)
	}
	return on, nil
}

// parseNumber returns the exact number of a text.
func parseNumber(value string) (*big.Rat, error) {
	// A float64 bounds the exponent: a big.Rat has the digits of 1e1000000.
	f, err := strconv.ParseFloat(value, 64)
	switch {
	case math.IsInf(f, 0):
		return nil, fmt.Errorf("value %.64q is too large", value)
	case err != nil, math.IsNaN(f):
		return nil, fmt.Errorf("value %.64q: want a number", value)
	case f == 0:
		return new(big.Rat), nil
	}
	r, ok := new(big.Rat).SetString(value)
	if !ok {
		return nil, fmt.Errorf("value %.64q: want a number", value)
	}
	return r, nil
}

// encode returns the registers of a value. It is an error if they cannot hold it: they would mean another value.
func (v *visitor) encode(kind, value string) ([]byte, error) {
	data := make([]byte, 2*int(v.Limit))
	kind = strings.ToUpper(kind)
	switch kind {
	case devices.TypeString:
		if copy(data, value) < len(value) {
			return nil, fmt.Errorf("value of %d bytes: the property has room for %d", len(value), len(data))
		}
		return v.swap(data), nil
	case devices.TypeBytes:
		raw, err := hex.DecodeString(value)
		if err != nil || len(raw) != len(data) { // fewer would be other bytes: zeros would follow
			return nil, fmt.Errorf("value %.64q: want %d bytes in hexadecimal", value, len(data))
		}
		copy(data, raw)
		return v.swap(data), nil
	case devices.TypeBoolean:
		on, err := parseBool(value)
		if on {
			data[len(data)-1] = 1
		}
		return v.swap(data), err
	}
	as, err := v.layout(kind)
	if err != nil {
		return nil, err
	}
	want, err := parseNumber(value)
	if err != nil {
		return nil, err
	}
	scale := decimal(v.Scale, 64) // not 0: see readVisitor
	number := new(big.Rat).Quo(want, scale)
	switch as {
	case float32s:
		f, _ := number.Float32()
		if math.IsInf(float64(f), 0) {
			return nil, fmt.Errorf("value %.64q does not fit into a FLOAT of 32 bits", value)
		}
		binary.BigEndian.PutUint32(data, math.Float32bits(f))
	case float64s:
		f, _ := number.Float64()
		if math.IsInf(f, 0) {
			return nil, fmt.Errorf("value %.64q does not fit into a DOUBLE of 64 bits", value)
		}
		binary.BigEndian.PutUint64(data, math.Float64bits(f))
	default:
		n := round(number)
		if err := v.holds(kind, value, want, scale, n); err != nil {
			return nil, err
		}
		if n.Sign() < 0 {
			n.Add(n, new(big.Int).Lsh(big.NewInt(1), uint(len(data)*8)))
		}
		n.FillBytes(data)
	}
	return v.swap(data), nil
}

// holds returns an error unless whole registers with the number n mean the value that is wanted. The nearest step of a
// scale means it; an INT must also be read back as the same number.
func (v *visitor) holds(kind, value string, want, scale *big.Rat, n *big.Int) error {
	bits := uint(v.Limit) * 16
	low, high := new(big.Int), new(big.Int).Lsh(big.NewInt(1), bits) // high is not included
	sign := "without a sign"
	if !v.Unsigned {
		high.Rsh(high, 1)
		low.Neg(high)
		sign = "with a sign (visitors.configData.unsigned has registers without one)"
	}
	if n.Cmp(low) < 0 || n.Cmp(high) >= 0 {
		return fmt.Errorf("value %.64q does not fit into %d bits %s", value, bits, sign)
	}
	back := new(big.Rat).Mul(new(big.Rat).SetInt(n), scale)
	switch {
	case v.Scale == 1 && !want.IsInt():
		return fmt.Errorf("value %.64q: the register holds whole numbers; visitors.configData.scale is 1", value)
	case kind == devices.TypeInt && (!want.IsInt() || round(back).Cmp(want.Num()) != 0):
		return fmt.Errorf("value %.64q: with visitors.configData.scale %v the register holds %s, not that number",
			value, v.Scale, back.FloatString(3))
	}
	return nil
}

// inRange returns an error if whole registers mean a number beyond the range of the model: the nearest step of a scale
// may be beyond it although the value is not. The nearest floating-point number is as near as the type can be.
func (v *visitor) inRange(p *mapper.Property, value string, raw []byte) error {
	kind := strings.ToUpper(p.Type)
	if kind == devices.TypeString || kind == devices.TypeBytes || kind == devices.TypeBoolean {
		return nil
	}
	as, err := v.layout(kind)
	if as != whole || err != nil {
		return err
	}
	held := new(big.Rat).SetInt(v.integer(v.swap(raw)))
	held.Mul(held, decimal(v.Scale, 64))
	for _, bound := range []struct {
		name, text string
		beyond     int // what Cmp with the bound must not be
	}{{"minimum", p.Minimum, -1}, {"maximum", p.Maximum, 1}} {
		limit, err := parseNumber(bound.text)
		if bound.text == "" || err != nil { // edgecore lets nobody set a property whose bounds are wrong
			continue
		}
		if held.Cmp(limit) == bound.beyond {
			return fmt.Errorf("value %.64q: with visitors.configData.scale %v the registers hold %s, which is beyond "+
				"the %s %.64q of the DeviceModel: use a value that they hold", value, v.Scale, held.FloatString(6),
				bound.name, bound.text)
		}
	}
	return nil
}
