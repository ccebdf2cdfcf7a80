package main

import (
	"sort"

	"github.com/anishathalye/porcupine"
)

// A checkpoint that was committed or prepared. Nodes are unique: the same id, content and parent is the same pointer.
type node struct {
	id, content string
	parent      *node
	depth       int
}

// An entry of the catalog: a savepoint, or (without a name) what is kept below the boundary.
type kept struct {
	name string
	node *node
}

// state is what `_latest` says. It is never changed: each step makes another one.
type state struct {
	head     *node
	prepared *node
	boundary int
	catalog  []kept   // sorted by depth, then name
	writer   string   // the session that took over last
	current  []string // the sessions that have restored since, sorted; the writer is one of them
	dropped  []string // ids that were aborted or refused, sorted: they are never committed
	ended    bool     // the history is over; what is still open then had no effect
}

type nodes struct {
	known    map[nodeKey]*node
	orphans  []string        // ids that were seen and that no operation gave: of those whose answer nobody got
	prepared map[string]bool // ids that a restore has shown as prepared
}

type nodeKey struct {
	id, content string
	parent      *node
}

func (all *nodes) child(parent *node, id, content string) *node {
	key := nodeKey{id, content, parent}
	if found, ok := all.known[key]; ok {
		return found
	}
	made := &node{id, content, parent, 1}
	if parent != nil {
		made.depth = parent.depth + 1
	}
	all.known[key] = made
	return made
}

// ---- what is live ----

func (s *state) ancestry() []*node {
	var found []*node
	for one := s.head; one != nil && one.depth >= s.boundary; one = one.parent {
		found = append(found, one)
	}
	return found
}

// live is every checkpoint that may be restored, newest first.
func (s *state) live() []*node {
	found := s.ancestry()
	for _, entry := range s.catalog {
		if !contains(found, entry.node) {
			found = append(found, entry.node)
		}
	}
	sort.Slice(found, func(i, j int) bool { return found[i].depth > found[j].depth })
	return found
}

func (s *state) find(id string) *node {
	for _, one := range s.live() {
		if one.id == id {
			return one
		}
	}
	return nil
}

func (s *state) isSavepoint(one *node) bool {
	for _, entry := range s.catalog {
		if entry.name != "" && entry.node == one {
			return true
		}
	}
	return false
}

func (s *state) committed(id string) bool {
	for one := s.head; one != nil; one = one.parent {
		if one.id == id {
			return true
		}
	}
	return false
}

func idOf(one *node) string {
	if one == nil {
		return ""
	}
	return one.id
}

// ---- what the operations do ----

// A session may write if nobody has taken over since it restored.
func (s *state) mayWrite(session string) bool {
	return sortedHas(s.current, session)
}

// written is the successor in the name of a session, which takes over unless it has before.
func (s *state) written(session string) *state {
	next := *s
	if s.writer != session {
		next.writer, next.current = session, []string{session}
	}
	return &next
}

func (s *state) follows(op *operation) bool {
	return s.mayWrite(op.Session) && idOf(s.head) == op.Parent && s.prepared == nil && !sortedHas(s.dropped, op.ID)
}

func (all *nodes) commit(s *state, op *operation) []*state {
	if !s.follows(op) {
		return nil
	}
	next := s.written(op.Session)
	next.head = all.child(s.head, op.ID, op.Content)
	return []*state{next}
}

func (all *nodes) prepare(s *state, op *operation) []*state {
	if !s.follows(op) {
		return nil
	}
	next := s.written(op.Session)
	next.prepared = all.child(s.head, op.ID, op.Content)
	return []*state{next}
}

// Promoting what is committed already is success, whoever did it, and changes nothing.
func promote(s *state, op *operation) []*state {
	if s.committed(op.ID) {
		return []*state{s}
	}
	if idOf(s.prepared) != op.ID || !s.mayWrite(op.Session) || sortedHas(s.dropped, op.ID) {
		return nil
	}
	next := s.written(op.Session)
	next.head, next.prepared = s.prepared, nil
	return []*state{next}
}

// An abort is an answer for ever, also where the prepare is still on its way.
func abort(s *state, op *operation) []*state {
	if s.prepared != nil && s.prepared.id != op.ID || !s.mayWrite(op.Session) || s.committed(op.ID) {
		return nil
	}
	next := s.written(op.Session)
	next.prepared, next.dropped = nil, sortedAdd(s.dropped, op.ID)
	return []*state{next}
}

// A rollback commits an older content anew. It knows what it found itself where the session had restored nothing.
func (all *nodes) rollback(s *state, op *operation) []*state {
	if s.head == nil || !op.Fresh && !s.mayWrite(op.Session) {
		return nil
	}
	ids := []string{op.ID}
	if op.ID == "" {
		ids = nil
		for _, id := range all.orphans {
			if sequence(id) == s.head.depth+1 {
				ids = append(ids, id)
			}
		}
	}
	var next []*state
	for _, target := range s.live() {
		if op.Target != "" && target.id != op.Target {
			continue
		}
		for _, id := range ids {
			one := s.written(op.Session)
			one.head, one.prepared = all.child(s.head, id, target.content), nil
			next = append(next, one)
		}
	}
	return next
}

// A savepoint without a target keeps what was committed when it looked, which may have been a moment before.
func savepoint(s *state, op *operation) []*state {
	if s.named(op.Name) != nil {
		return nil
	}
	wanted := op.Target
	if op.answer != nil {
		if wanted != "" && op.answer.ID != wanted {
			return nil
		}
		wanted = op.answer.ID
	}
	var next []*state
	for _, target := range s.live() {
		if target.id == wanted || wanted == "" && !op.missed[target.id] {
			next = append(next, s.withCatalog(append(append([]kept{}, s.catalog...), kept{op.Name, target})))
		}
	}
	return next
}

func (s *state) named(name string) *node {
	for _, entry := range s.catalog {
		if entry.name == name {
			return entry.node
		}
	}
	return nil
}

// A name that another has taken away meanwhile is gone as well. Retention decides about a checkpoint that only the name
// has kept.
func deleteSavepoint(s *state, op *operation) []*state {
	var rest []kept
	var listed []*node
	for _, entry := range s.catalog {
		if entry.name != op.Name {
			rest, listed = append(rest, entry), append(listed, entry.node)
		}
	}
	if target := s.named(op.Name); target != nil && target.depth < s.boundary && !contains(listed, target) {
		rest = append(rest, kept{"", target})
	}
	return []*state{s.withCatalog(rest)}
}

func (s *state) withCatalog(entries []kept) *state {
	next := *s
	sort.Slice(entries, func(i, j int) bool {
		if entries[i].node.depth != entries[j].node.depth {
			return entries[i].node.depth < entries[j].node.depth
		}
		return entries[i].name < entries[j].name
	})
	next.catalog = entries
	return &next
}

// Deleting ends one checkpoint that nothing keeps; a second one finds that it was done.
func remove(s *state, op *operation) []*state {
	target := s.find(op.Target)
	if target == nil {
		if s.committed(op.Target) {
			return []*state{s}
		}
		return nil
	}
	if target == s.head || s.isSavepoint(target) {
		return nil
	}
	return []*state{s.without([]*node{target})}
}

// outdated is what a policy of the newest so many retires.
func (s *state) outdated(keepLast int) []*node {
	var found []*node
	for index, one := range s.live() {
		if index >= keepLast && one != s.head && !s.isSavepoint(one) {
			found = append(found, one)
		}
	}
	return found
}

// without raises the boundary above the newest of those that go; what stays below it is kept in the catalog.
func (s *state) without(gone []*node) *state {
	ancestry, run := s.ancestry(), 0
	for run < len(ancestry) && !contains(gone, ancestry[run]) {
		run++
	}
	var entries []kept
	var listed []*node
	for _, entry := range s.catalog {
		if !contains(gone, entry.node) {
			entries, listed = append(entries, entry), append(listed, entry.node)
		}
	}
	for _, one := range ancestry[run:] {
		if !contains(gone, one) && !contains(listed, one) {
			entries = append(entries, kept{"", one})
		}
	}
	next := s.withCatalog(entries)
	if run < len(ancestry) && run > 0 {
		next.boundary = ancestry[run-1].depth
	}
	return next
}

// apply is what an operation that took effect makes of a state: nothing where it cannot have.
func (all *nodes) apply(s *state, op *operation) []*state {
	switch op.Kind {
	case "commit":
		return all.commit(s, op)
	case "prepare":
		return all.prepare(s, op)
	case "promote":
		return promote(s, op)
	case "abort":
		return abort(s, op)
	case "rollback":
		return all.rollback(s, op)
	case "savepoint":
		return savepoint(s, op)
	case "delete_savepoint":
		return deleteSavepoint(s, op)
	case "delete":
		return remove(s, op)
	case "clean":
		if s.head == nil {
			return nil
		}
		return []*state{s.without(s.outdated(op.KeepLast))}
	case "retire":
		var gone []*node
		for _, id := range op.IDs {
			one := s.find(id)
			if one == s.head && one != nil || one != nil && s.isSavepoint(one) {
				return nil
			}
			if one != nil {
				gone = append(gone, one)
			}
		}
		return []*state{s.without(gone)}
	}
	return nil
}

func (answer *result) shows(one *node) bool {
	return answer.Content == nil || *answer.Content == one.content
}

// observe is what an answer says of a state.
func (s *state) observe(op *operation, answer *result) []*state {
	switch op.Kind {
	case "restore":
		if idOf(s.head) != answer.ID || s.head != nil && !answer.shows(s.head) {
			return nil
		}
		if answer.Prepared != nil && idOf(s.prepared) != *answer.Prepared {
			return nil
		}
		next := *s
		next.current = sortedAdd(s.current, op.Session)
		return []*state{&next}
	case "load":
		one := s.find(op.Target)
		if op.Name != "" {
			one = s.named(op.Name)
		}
		if one == nil || !answer.shows(one) {
			return nil
		}
		return []*state{s}
	case "list":
		live := s.live()
		if len(live) != len(answer.IDs) {
			return nil
		}
		for index, one := range live {
			if answer.IDs[len(live)-1-index] != one.id {
				return nil
			}
		}
		return []*state{s}
	case "savepoints":
		count := 0
		for _, entry := range s.catalog {
			if entry.name == "" {
				continue
			}
			if answer.Names[entry.name] != entry.node.id {
				return nil
			}
			count++
		}
		if count != len(answer.Names) {
			return nil
		}
		return []*state{s}
	}
	return nil
}

// refused is a state in which an operation may have been told that it did not happen.
func (s *state) refused(op *operation, why string) []*state {
	allowed := true
	switch why {
	case "fenced":
		allowed = s.writer != op.Session && s.writer != ""
	case "not found":
		switch {
		case op.Name != "" && op.Kind != "savepoint":
			allowed = s.named(op.Name) == nil
		case op.Target != "":
			allowed = s.find(op.Target) == nil
		default:
			allowed = s.head == nil
		}
	}
	if !allowed {
		return nil
	}
	return []*state{s}
}

// conflicting is what a refused prepare or abort may have done. Where the answer to its swap was lost and others moved
// the pointer after that, the refusal says only that the checkpoint is not committed, and never will be. An effect that
// nobody can have seen is left out, since it would only make the search longer.
func (all *nodes) conflicting(s *state, op *operation, why string) []*state {
	next := s.refused(op, why)
	if !all.prepared[op.ID] || op.Kind == "abort" && idOf(s.prepared) != op.ID {
		return next
	}
	for _, one := range all.apply(s, op) {
		one.dropped = sortedAdd(one.dropped, op.ID)
		next = append(next, one)
	}
	return next
}

// ---- the model ----

func (all *nodes) step(s *state, op *operation, answer *result) []*state {
	switch {
	case op.Kind == "end":
		next := *s
		next.ended = true
		return []*state{&next}
	case answer == nil && s.ended: // it never took effect
		return []*state{s}
	case answer == nil:
		return all.apply(s, op)
	case (op.Kind == "prepare" || op.Kind == "abort") && answer.Refused != "":
		return all.conflicting(s, op, answer.Refused)
	case answer.Refused != "":
		return s.refused(op, answer.Refused)
	case op.isReading():
		return s.observe(op, answer)
	case op.Kind == "clean":
		return all.clean(s, op, answer)
	}
	return all.apply(s, op)
}

// A cleanup that says it retired nothing may have, where the answer to its swap was lost; nor does it have to.
func (all *nodes) clean(s *state, op *operation, answer *result) []*state {
	gone := s.outdated(op.KeepLast)
	if len(answer.IDs) == 0 {
		if len(gone) == 0 {
			return []*state{s}
		}
		return []*state{s, s.without(gone)}
	}
	if len(gone) != len(answer.IDs) {
		return nil
	}
	for index, one := range gone {
		if answer.IDs[len(gone)-1-index] != one.id {
			return nil
		}
	}
	return []*state{s.without(gone)}
}

func newModel(history []operation) porcupine.Model {
	all := &nodes{known: map[nodeKey]*node{}, orphans: orphans(history), prepared: shownPrepared(history)}
	model := porcupine.NondeterministicModel{
		Init: func() []interface{} { return []interface{}{&state{boundary: 1}} },
		Step: func(s, input, output interface{}) []interface{} {
			var next []interface{}
			for _, one := range all.step(s.(*state), input.(*operation), output.(*result)) {
				next = append(next, one)
			}
			return next
		},
		Equal: func(a, b interface{}) bool { return equal(a.(*state), b.(*state)) },
	}
	return model.ToModel()
}

func shownPrepared(history []operation) map[string]bool {
	found := map[string]bool{}
	for _, op := range history {
		if op.answer != nil && op.answer.Prepared != nil {
			found[*op.answer.Prepared] = true
		}
	}
	return found
}

// orphans are ids that somebody saw and nobody gave.
func orphans(history []operation) []string {
	given, seen := map[string]bool{}, map[string]bool{}
	for _, op := range history {
		given[op.ID] = true
		seen[op.Parent], seen[op.Target] = true, true
		if op.answer != nil {
			if op.Kind == "rollback" {
				given[op.answer.ID] = true
			}
			seen[op.answer.ID] = true
			for _, id := range op.answer.IDs {
				seen[id] = true
			}
		}
	}
	var found []string
	for id := range seen {
		if id != "" && !given[id] {
			found = append(found, id)
		}
	}
	sort.Strings(found)
	return found
}
