package main

import "math"

// narrow notes what a savepoint of unknown outcome cannot have found committed: what had been replaced before its call,
// and what was committed after the next call of its process, by which it had ended. It could keep any live checkpoint
// otherwise, and a search through a history with several of them would hardly end.
func narrow(lines []line, given []operation) {
	parents, since, until := map[string]string{}, map[string]int64{}, map[string]int64{}
	for _, one := range lines {
		switch one.Op.Kind {
		case "rollback":
			return // it commits what has no call of its own, and may replace anything
		case "commit", "prepare":
			parents[one.Op.ID] = one.Op.Parent
		}
	}
	for _, one := range lines { // in the order of their calls
		if one.Op.Kind != "commit" && one.Op.Kind != "promote" {
			continue
		}
		if _, found := since[one.Op.ID]; !found {
			since[one.Op.ID] = one.Call
		}
		if one.Return != nil && one.Result.Refused == "" {
			parent := parents[one.Op.ID]
			if before, found := until[parent]; !found || *one.Return < before {
				until[parent] = *one.Return
			}
		}
	}
	for index, one := range lines {
		if one.Op.Kind != "savepoint" || one.Op.Target != "" || one.Result != nil {
			continue
		}
		ended := int64(math.MaxInt64)
		for _, later := range lines[index+1:] {
			if later.Process == one.Process {
				ended = later.Call
				break
			}
		}
		given[index].missed = map[string]bool{}
		for id := range parents {
			begin, begun := since[id]
			end, replaced := until[id]
			given[index].missed[id] = !begun || begin > ended || replaced && end < one.Call
		}
	}
}
