package userns

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// user is who gives ids away, as for the kubelet.
const user = "kubelet"

// pool is the ids that may be given away, in blocks of Length.
type pool struct {
	first  uint32
	blocks uint32
}

// wholeNode is all ids but those of the node itself and the last, which means "no user".
var wholeNode = pool{first: Length, blocks: (math.MaxUint32 - Length) / Length}

// free returns the lowest block that overlaps with none that is taken.
func (p pool) free(taken map[types.UID]uint32) (uint32, error) {
	used := make(map[uint32]bool, 2*len(taken))
	for _, first := range taken {
		if first < p.first {
			used[0] = used[0] || uint64(first)+Length > uint64(p.first) // it may reach into the first block
			continue
		}
		block := (first - p.first) / Length
		used[block] = true
		if (first-p.first)%Length != 0 {
			used[block+1] = true
		}
	}
	for block := range p.blocks {
		if !used[block] {
			return p.first + block*Length, nil
		}
	}
	return 0, fmt.Errorf("all %d ranges of ids are taken; remove a pod with hostUsers: false, or give the user %s "+
		"more ids in /etc/subuid and /etc/subgid", p.blocks, user)
}

// readPool reads which ids the node's administrator set aside; without any it is all.
func readPool(subuid, subgid string) (pool, error) {
	uids, err := readRange(subuid)
	if err != nil {
		return pool{}, err
	}
	gids, err := readRange(subgid)
	if err != nil {
		return pool{}, err
	}
	switch {
	case uids != gids:
		return pool{}, fmt.Errorf("the user %s has other ids in %s than in %s; give it the same in both", user, subuid,
			subgid)
	case uids == pool{}:
		return wholeNode, nil
	}
	return uids, nil
}

// readRange reads the one range that a file of subordinate ids gives the user; none is the zero value.
func readRange(path string) (pool, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return pool{}, nil
	}
	if err != nil {
		return pool{}, err
	}
	defer f.Close()
	var got pool
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, rest, _ := strings.Cut(strings.TrimSpace(lines.Text()), ":")
		if name != user {
			continue
		}
		if got != (pool{}) {
			return pool{}, fmt.Errorf("%s gives the user %s more than one range; leave one", path, user)
		}
		if got, err = parseRange(rest); err != nil {
			return pool{}, fmt.Errorf("%s, user %s: %w", path, user, err)
		}
	}
	if err := lines.Err(); err != nil {
		return pool{}, fmt.Errorf("%s: %w", path, err)
	}
	return got, nil
}

// parseRange reads "<first>:<count>".
func parseRange(text string) (pool, error) {
	a, b, _ := strings.Cut(text, ":")
	first, err1 := strconv.ParseUint(a, 10, 32)
	count, err2 := strconv.ParseUint(b, 10, 32)
	switch {
	case err1 != nil || err2 != nil:
		return pool{}, fmt.Errorf("%q is not a range; want <first id>:<count>", text)
	case first < Length || first+count > math.MaxUint32:
		return pool{}, fmt.Errorf("the range %s: want ids from %d on, and below %d", text, Length,
			uint32(math.MaxUint32))
	case count < Length || count%Length != 0:
		return pool{}, fmt.Errorf("the range %s: want a multiple of %d ids", text, Length)
	}
	return pool{first: uint32(first), blocks: uint32(count / Length)}, nil
}
