// Judges histories of a store's root: whether what several processes were told can have happened in one order, in which
// each operation takes effect at once, between its call and its return.
//
// Standard input has a JSON object for each operation, in any order, and an empty line after each history:
//
//	{"process": 1, "call": 10, "return": 12, "op": {"kind": "commit", …}, "result": {…}}
//
// An operation without a return has no known outcome: it may take effect at any time after its call, or never. For each
// history standard output has one line: {"verdict": "linearizable" | "not linearizable" | "timed out", …}.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	Kind     string   `json:"kind"`
	Session  string   `json:"session"`   // who writes: a session takes over, and is fenced, as a whole
	Parent   string   `json:"parent"`    // what a commit stands on; empty for the first
	ID       string   `json:"id"`        // what it makes
	Content  string   `json:"content"`   // its digest
	Target   string   `json:"target"`    // what is loaded, deleted, kept or gone back to
	Name     string   `json:"name"`      // of a savepoint
	KeepLast int      `json:"keep_last"` // of a cleanup
	IDs      []string `json:"ids"`       // what a plan retires
	Fresh    bool     `json:"fresh"`     // a rollback by a session that had restored nothing

	answer *result
	missed map[string]bool // of a savepoint: checkpoints that it cannot have found committed
}

type result struct {
	Refused  string   `json:"refused"` // it certainly did not happen: "fenced", "not found", or why else
	ID       string   `json:"id"`
	Content  *string  `json:"content"`  // none where it was not read
	Prepared *string  `json:"prepared"` // what was found prepared; empty for nothing
	IDs      []string `json:"ids"`

	Names map[string]string `json:"names"` // of savepoints, with what they keep
}

type line struct {
	Process int       `json:"process"`
	Call    int64     `json:"call"`
	Return  *int64    `json:"return"`
	Op      operation `json:"op"`
	Result  *result   `json:"result"`
}

var kinds = map[string]bool{
	"commit": true, "prepare": true, "promote": true, "abort": true, "rollback": true, "restore": true, "load": true,
	"list": true, "savepoints": true, "savepoint": true, "delete_savepoint": true, "delete": true, "clean": true, "retire": true,
}

func parse(text string) (line, error) {
	var found line
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&found); err != nil {
		return found, err
	}
	switch {
	case !kinds[found.Op.Kind]:
		return found, fmt.Errorf("no kind of operation: %q", found.Op.Kind)
	case (found.Return == nil) != (found.Result == nil):
		return found, fmt.Errorf("a result without a return, or a return without a result")
	case found.Return != nil && *found.Return < found.Call:
		return found, fmt.Errorf("a return before its call")
	}
	return found, nil
}

// An operation that nobody knows the outcome of ends after everything else, and may be passed over by then.
func history(lines []line) ([]porcupine.Operation, []operation) {
	last := int64(0)
	for _, one := range lines {
		last = max(last, one.Call)
		if one.Return != nil {
			last = max(last, *one.Return)
		}
	}
	sort.SliceStable(lines, func(i, j int) bool { return lines[i].Call < lines[j].Call })
	given := make([]operation, len(lines))
	found := make([]porcupine.Operation, 0, len(lines)+1)
	for index, one := range lines {
		given[index] = one.Op
		given[index].answer = one.Result
		if one.Op.Kind == "rollback" && one.Result != nil {
			given[index].ID = one.Result.ID
		}
		until := last + 2
		if one.Return != nil {
			until = *one.Return
		} else if given[index].isReading() {
			continue // it changed nothing, and nobody knows what it saw
		}
		found = append(found, porcupine.Operation{
			ClientId: one.Process, Input: &given[index], Call: one.Call, Output: one.Result, Return: until,
		})
	}
	narrow(lines, given)
	end := porcupine.Operation{Input: &operation{Kind: "end"}, Call: last + 1, Output: &result{}, Return: last + 1}
	return append(found, end), given
}

func (op *operation) isReading() bool {
	return op.Kind == "restore" || op.Kind == "load" || op.Kind == "list" || op.Kind == "savepoints"
}

type verdict struct {
	Verdict    string  `json:"verdict"`
	Operations int     `json:"operations"`
	Open       int     `json:"open"`
	Seconds    float64 `json:"seconds"`
}

func judge(lines []line, timeout time.Duration) verdict {
	operations, given := history(lines)
	open := 0
	for _, one := range given {
		if one.answer == nil {
			open++
		}
	}
	began := time.Now()
	names := map[porcupine.CheckResult]string{
		porcupine.Ok: "linearizable", porcupine.Illegal: "not linearizable", porcupine.Unknown: "timed out",
	}
	found := porcupine.CheckOperationsTimeout(newModel(given), operations, timeout)
	return verdict{names[found], len(given), open, time.Since(began).Seconds()}
}

func main() {
	timeout := flag.Duration("timeout", 60*time.Second, "for each history")
	flag.Parse()
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 1<<26)
	output := json.NewEncoder(os.Stdout)
	var lines []line
	flush := func() {
		if len(lines) > 0 {
			_ = output.Encode(judge(lines, *timeout))
			lines = nil
		}
	}
	for number := 1; input.Scan(); number++ {
		if strings.TrimSpace(input.Text()) == "" {
			flush()
			continue
		}
		one, err := parse(input.Text())
		if err != nil {
			fmt.Fprintf(os.Stderr, "line %d: %v\n", number, err)
			os.Exit(2)
		}
		lines = append(lines, one)
	}
	if err := input.Err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	flush()
}

// ---- small things ----

// sequence is the number that an id begins with.
func sequence(id string) int {
	digits, _, _ := strings.Cut(id, "-")
	found, err := strconv.Atoi(digits)
	if err != nil {
		return -1
	}
	return found
}

func contains(all []*node, one *node) bool {
	for _, other := range all {
		if other == one {
			return true
		}
	}
	return false
}

func sortedHas(all []string, one string) bool {
	at := sort.SearchStrings(all, one)
	return at < len(all) && all[at] == one
}

func sortedAdd(all []string, one string) []string {
	if sortedHas(all, one) {
		return all
	}
	at := sort.SearchStrings(all, one)
	found := make([]string, 0, len(all)+1)
	found = append(append(append(found, all[:at]...), one), all[at:]...)
	return found
}

func sameStrings(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	for index := range a {
		if a[index] != b[index] {
			return false
		}
	}
	return true
}

func equal(a, b *state) bool {
	if a.head != b.head || a.prepared != b.prepared || a.boundary != b.boundary || a.writer != b.writer {
		return false
	}
	if a.ended != b.ended || len(a.catalog) != len(b.catalog) {
		return false
	}
	for index := range a.catalog {
		if a.catalog[index] != b.catalog[index] {
			return false
		}
	}
	return sameStrings(a.current, b.current) && sameStrings(a.dropped, b.dropped)
}
