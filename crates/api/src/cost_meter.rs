//! Counts steps of work that grow with a client's input. Tests assert that the cost stays linear;
//! outside of tests nothing is counted.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[inline]
pub(super) fn count(steps: usize) {
    #[cfg(test)]
    STEPS.with(|all| all.set(all.get() + steps));
    #[cfg(not(test))]
    let _ = steps;
}

/// Asserts that `work` on an input of twice the length costs about twice the steps.
#[cfg(test)]
pub(super) fn assert_linear<T>(what: &str, input: impl Fn(usize) -> T, work: impl Fn(T)) {
    let cost = |length| {
        let input = input(length);
        STEPS.with(|all| all.set(0));
        work(input);
        STEPS.with(std::cell::Cell::get)
    };
    let (short, long) = (cost(1000), cost(2000));
    assert!(long <= short * 5 / 2 + 1000, "{what}: {short} steps become {long} with twice the length");
}
