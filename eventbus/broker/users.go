package broker

import (
	"bufio"
	"bytes"
	"crypto/pbkdf2"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

const (
	maxPasswordFile = 1 << 20
	maxIterations   = 100_000
	maxHash         = 1 << 10
)

// Users are the names and passwords of clients. Make them with NewUsers or ReadUsers.
type Users struct {
	plain  map[string]string
	hashed map[string]hash
}

// hash is a password as mosquitto_passwd stores it: PBKDF2 with SHA-512.
type hash struct {
	iterations int
	salt, sum  []byte
}

// NewUsers returns users with their passwords.
func NewUsers(passwords map[string]string) *Users {
	u := &Users{plain: map[string]string{}, hashed: map[string]hash{}}
	for name, password := range passwords {
		u.plain[name] = password
	}
	return u
}

// Add adds all users of other; those of the same name are replaced.
func (u *Users) Add(other *Users) {
	for name, password := range other.plain {
		delete(u.hashed, name)
		u.plain[name] = password
	}
	for name, h := range other.hashed {
		delete(u.plain, name)
		u.hashed[name] = h
	}
}

// ReadUsers reads a password file of mosquitto, which mosquitto_passwd creates: lines NAME:$7$ITERATIONS$SALT$HASH.
func ReadUsers(path string) (*Users, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("MQTT password file: %w; create it with mosquitto_passwd", err)
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxPasswordFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("MQTT password file %s: %w", path, err)
	case len(content) > maxPasswordFile:
		return nil, fmt.Errorf("MQTT password file %s: has more than %d bytes", path, maxPasswordFile)
	}
	u, err := parseUsers(content)
	if err != nil {
		return nil, fmt.Errorf("MQTT password file %s: %w", path, err)
	}
	return u, nil
}

func parseUsers(content []byte) (*Users, error) {
	u := NewUsers(nil)
	lines := bufio.NewScanner(bytes.NewReader(content))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, rest, _ := strings.Cut(line, ":")
		h, err := parseHash(rest)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w; create it with mosquitto_passwd of mosquitto 2.0 or newer", n, err)
		}
		u.hashed[name] = h
	}
	return u, lines.Err()
}

func parseHash(s string) (hash, error) {
	parts := strings.Split(s, "$")
	if len(parts) != 5 || parts[0] != "" || parts[1] != "7" {
		return hash{}, errors.New("want NAME:$7$ITERATIONS$SALT$HASH")
	}
	iterations, err := strconv.Atoi(parts[2])
	if err != nil || iterations < 1 || iterations > maxIterations {
		return hash{}, fmt.Errorf("the number of iterations must be between 1 and %d", maxIterations)
	}
	salt, saltErr := base64.StdEncoding.DecodeString(parts[3])
	sum, sumErr := base64.StdEncoding.DecodeString(parts[4])
	if err := errors.Join(saltErr, sumErr); err != nil {
		return hash{}, fmt.Errorf("salt and hash must be base64: %w", err)
	}
	if len(sum) < 16 || len(sum) > maxHash || len(salt) > maxHash {
		return hash{}, errors.New("salt or hash has a wrong length")
	}
	return hash{iterations, salt, sum}, nil
}

// Check reports whether a user has this password.
func (u *Users) Check(name string, password []byte) bool {
	if want, ok := u.plain[name]; ok {
		return subtle.ConstantTimeCompare([]byte(want), password) == 1
	}
	if h, ok := u.hashed[name]; ok {
		got, err := pbkdf2.Key(sha512.New, string(password), h.salt, h.iterations, len(h.sum))
		return err == nil && subtle.ConstantTimeCompare(got, h.sum) == 1
	}
	return false
}
