//! Cycles in what waits for what.

use alloc::vec::Vec;

/// A cycle among things of which each waits for some others, given by their places: the places in it, in order, or none where
/// there is no cycle. Looks at each edge once; places beyond the end are no edges.
#[must_use]
pub fn cycle_of(waits_for: &[Vec<usize>]) -> Option<Vec<usize>> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        OnPath,
        Done,
    }
    let mut marks = alloc::vec![Mark::New; waits_for.len()];
    for start in 0..waits_for.len() {
        if marks[start] != Mark::New {
            continue;
        }
        // The way from the start, each with the number of its edges that were followed.
        let mut path = alloc::vec![(start, 0)];
        marks[start] = Mark::OnPath;
        while let Some((at, followed)) = path.last_mut() {
            let Some(next) = waits_for[*at].get(*followed).copied() else {
                marks[*at] = Mark::Done;
                path.pop();
                continue;
            };
            *followed += 1;
            match marks.get(next) {
                Some(Mark::OnPath) => {
                    let begin = path.iter().position(|(place, _)| *place == next).unwrap_or(0);
                    return Some(path[begin..].iter().map(|(place, _)| *place).collect());
                }
                Some(Mark::New) => {
                    marks[next] = Mark::OnPath;
                    path.push((next, 0));
                }
                Some(Mark::Done) | None => {}
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::cycle_of;
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn cycles_are_found_wherever_they_begin() {
        assert_eq!(cycle_of(&[]), None);
        assert_eq!(cycle_of(&[vec![0]]), Some(vec![0]));
        assert_eq!(cycle_of(&[vec![1, 2], vec![3], vec![3], vec![]]), None, "a diamond");
        assert_eq!(cycle_of(&[vec![1], vec![2], vec![1]]), Some(vec![1, 2]));
        assert_eq!(cycle_of(&[vec![], vec![0, 2], vec![3], vec![1, 0]]), Some(vec![1, 2, 3]));
        assert_eq!(cycle_of(&[vec![7]]), None, "nothing is there");
        // A chain that a recursion could not follow, and one that closes.
        let mut chain: Vec<Vec<usize>> = (1..100_000).map(|next| vec![next]).collect();
        chain.push(vec![]);
        assert_eq!(cycle_of(&chain), None);
        chain[99_999].push(0);
        assert_eq!(cycle_of(&chain).map(|cycle| cycle.len()), Some(100_000));
    }
}
