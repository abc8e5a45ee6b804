//! Makes a conversation fit: old tool results are condensed, the oldest first, then the oldest turns are left out whole. What cannot be
//! given up is the turn at work, its newest tool result, its errors, and what is short anyway.

use super::super::message::{Message, Outcome, first_turn_len};
use super::super::settings;
use super::TokenEstimate;
use super::condense::condense;

/// How much room there is, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Budget {
    /// What the input may take at most.
    pub available: u64,
    /// From where on old results are condensed; none where they never are.
    pub trigger: Option<u64>,
    /// Down to where they are.
    pub target: u64,
}

/// What was done to make it fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Fit {
    /// What the whole took before.
    pub tokens_before: u64,
    /// What it takes now.
    pub tokens_after: u64,
    /// Tool results that were condensed.
    pub condensed: usize,
    /// Turns that were left out.
    pub turns_dropped: usize,
}

/// It does not fit, whatever is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Overflow {
    /// What it takes.
    pub tokens: u64,
    /// What there is room for.
    pub available: u64,
}

impl Budget {
    /// Of a window, of which a part is reserved for the answer.
    pub fn new(window: u64, reserve: u64, context: &settings::Context) -> Self {
        // Ratios are decimal fractions: a part that is a whole number must not lose its last token to binary ones.
        let part = |whole: u64, ratio: f64| (whole as f64 * ratio + 1e-6) as u64;
        let available = part(window, context.input_budget_ratio).min(window.saturating_sub(reserve));
        let trigger = part(available, context.compact_at_ratio);
        Self {
            available,
            trigger: context.compaction_enabled.then_some(trigger),
            target: part(available, context.compact_to_ratio),
        }
    }
}

impl Fit {
    /// Whether anything was given up.
    pub fn changed(&self) -> bool {
        self.condensed > 0 || self.turns_dropped > 0
    }
}

/// Makes it fit: `past` are the turns before the one at work, whose messages `now` are; `fixed` is what the rest of the input takes.
///
/// # Errors
/// [`Overflow`], with all given up that can be.
pub(in super::super) fn fit(
    past: &mut Vec<Message>,
    now: &mut [Message],
    fixed: u64,
    budget: Budget,
    estimate: TokenEstimate,
) -> Result<Fit, Overflow> {
    let total = |past: &[Message], now: &[Message]| fixed + estimate.messages(past.iter().chain(now));
    let tokens_before = total(past, now);
    let mut fit = Fit { tokens_before, tokens_after: tokens_before, ..Fit::default() };
    if budget.trigger.is_some_and(|trigger| tokens_before > trigger) {
        let is_result = |message: &&Message| matches!(message, Message::Tool { .. });
        let results = past.iter().chain(now.iter()).filter(is_result).count();
        let older = past.iter_mut().chain(now.iter_mut());
        for message in older.filter(|message| is_result(&&**message)).take(results.saturating_sub(1)) {
            if fit.tokens_after <= budget.target {
                break;
            }
            let tokens = estimate.message(message);
            if condense_message(message) {
                fit.condensed += 1;
                fit.tokens_after = fit.tokens_after - tokens + estimate.message(message);
            }
        }
    }
    while fit.tokens_after > budget.available && !past.is_empty() {
        let dropped: Vec<_> = past.drain(..first_turn_len(past).unwrap_or(past.len())).collect();
        fit.turns_dropped += 1;
        fit.tokens_after -= estimate.messages(&dropped);
    }
    if fit.tokens_after > budget.available {
        return Err(Overflow { tokens: fit.tokens_after, available: budget.available });
    }
    Ok(fit)
}

fn condense_message(message: &mut Message) -> bool {
    let Message::Tool { content, outcome: Outcome::Succeeded, condensed: condensed @ false, .. } = message
    else {
        return false;
    };
    match condense(content) {
        Some(short) => {
            (*content, *condensed) = (short, true);
            true
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: TokenEstimate = TokenEstimate::Bytes;

    fn budget(window: u64, reserve: u64) -> Budget {
        Budget::new(window, reserve, &settings::Settings::built_in("main").context)
    }

    fn user(bytes: usize) -> Message {
        Message::User { content: "q".repeat(bytes) }
    }

    fn tool(bytes: usize, outcome: Outcome) -> Message {
        Message::Tool { tool_call_id: "c".into(), content: "x".repeat(bytes), outcome, condensed: false }
    }

    fn fit_turn(messages: &mut [Message], budget: Budget) -> Result<Fit, Overflow> {
        fit(&mut Vec::new(), messages, 0, budget, BYTES)
    }

    #[test]
    fn row_88_a_window_is_divided_by_the_ratios() {
        let budget = budget(1000, 200);
        assert_eq!(budget, Budget { available: 700, trigger: Some(560), target: 385 });
        let mut messages = [user(548)];
        let done = fit_turn(&mut messages, budget).unwrap();
        assert_eq!((done.tokens_before, done.changed()), (560, false));
        assert_eq!(messages, [user(548)]);
        assert_eq!(self::budget(1000, 400).available, 600, "the answer's part is never the input's");
    }

    #[test]
    fn row_89_the_older_result_is_condensed_and_the_newest_never() {
        let conversation = || [user(1), tool(400, Outcome::Succeeded), tool(400, Outcome::Succeeded)];
        let mut messages = conversation();
        let done = fit_turn(&mut messages, budget(1400, 0)).unwrap();
        assert_eq!(done, Fit { tokens_before: 837, tokens_after: 807, condensed: 1, turns_dropped: 0 });
        assert!(matches!(&messages[1], Message::Tool { condensed: true, .. }));
        assert_eq!(messages[2], conversation()[2]);
        let overflow = fit_turn(&mut conversation(), budget(1000, 0)).unwrap_err();
        assert_eq!(overflow, Overflow { tokens: 807, available: 700 });
        let again = fit_turn(&mut messages, budget(1400, 0)).unwrap();
        assert_eq!((again.tokens_before, again.condensed), (807, 0), "what is condensed stays so");
    }

    #[test]
    fn row_90_short_results_and_errors_are_never_condensed() {
        for (bytes, outcome) in [(319, Outcome::Succeeded), (400, Outcome::Failed), (400, Outcome::Uncertain)]
        {
            let mut messages = [user(1), tool(bytes, outcome), tool(600, Outcome::Succeeded)];
            let done = fit_turn(&mut messages, budget(1600, 0)).unwrap();
            assert_eq!((done.condensed, &messages[1]), (0, &tool(bytes, outcome)), "{bytes} {outcome:?}");
        }
    }

    #[test]
    fn row_91_without_compaction_the_room_alone_counts() {
        let mut context = settings::Settings::built_in("main").context;
        context.compaction_enabled = false;
        let budget = Budget::new(1000, 200, &context);
        let passes = fit_turn(&mut [user(600)], budget).unwrap();
        assert_eq!((passes.tokens_after, passes.changed()), (612, false));
        let fails = fit_turn(&mut [user(700)], budget).unwrap_err();
        assert_eq!(fails, Overflow { tokens: 712, available: 700 });
    }

    #[test]
    fn earlier_turns_are_left_out_whole_the_oldest_first() {
        let answer = |bytes| Message::Assistant { content: "a".repeat(bytes), tool_calls: Vec::new() };
        let mut past = vec![user(100), answer(100), user(200), tool(10, Outcome::Failed), answer(88)];
        let mut now = [user(300)];
        let done = fit(&mut past, &mut now, 50, budget(1000, 0), BYTES).unwrap();
        assert_eq!((done.turns_dropped, done.tokens_after), (1, 50 + 212 + 22 + 100 + 312));
        assert_eq!(past.len(), 3);
        let done = fit(&mut past, &mut now, 150, budget(1000, 0), BYTES).unwrap();
        assert_eq!((done.turns_dropped, past.len()), (1, 0));
        assert!(fit(&mut past, &mut now, 500, budget(1000, 0), BYTES).is_err());
    }

    #[test]
    fn results_of_earlier_turns_are_condensed_before_any_turn_is_left_out() {
        let mut past = vec![user(1), tool(300, Outcome::Failed), tool(600, Outcome::Succeeded)];
        assert!(fit(&mut past.clone(), &mut [user(100)], 0, budget(1300, 0), BYTES).unwrap().condensed == 0);
        past.push(tool(1, Outcome::Succeeded));
        let done = fit(&mut past, &mut [user(100)], 0, budget(1300, 0), BYTES).unwrap();
        assert_eq!((done.condensed, done.turns_dropped), (1, 0));
    }
}
