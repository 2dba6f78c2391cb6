"""The benches by the names that people type. Adding one is one row here."""

from __future__ import annotations

from types import ModuleType

from posterity.bench import (
    bde_image,
    bde_language,
    bde_tabular,
    carrier_cost,
    certificate,
    chains_cost,
    forecast,
    guarantees,
    low_rank_air,
    low_rank_change,
    low_rank_cost,
    low_rank_fashion,
    low_rank_icu,
    low_rank_text,
    memory,
    propagation_cost,
    propagation_covariance,
    propagation_models,
    propagation_profile,
    propagation_rules,
    safety,
    scaling,
    score_cost,
    score_gaussian,
    score_mixture,
    score_mnist,
    score_posteriordb,
    selective,
    sghmc_gaussian,
    step_profile,
    training_cost,
    transfer,
)
from posterity.bench.bench import Bench

__all__ = ["BENCHES"]


def _bench(module: ModuleType, about: str, shown: str) -> Bench:
    """The bench of a module with `cells`, `claims` and `LIMITS`; the fields that are shown, as in `Bench`, in a row."""
    return Bench(about, module.cells, module.claims, module.LIMITS, tuple(shown.split()))


BENCHES: dict[str, Bench] = {
    "training-cost": _bench(
        training_cost,
        "time and memory of a training step against torch's AdamW",
        "contestant milliseconds times_adamw median_times_adamw copies",
    ),
    "carrier-cost": _bench(
        carrier_cost,
        "time of a linear layer with a factored weight against the dense one",
        "dense_ms factored_ms formed_ms ratio formed_ratio",
    ),
    "step-profile": _bench(
        step_profile,
        "what a step of every algorithm is made of: gradient, products, noise, calls, arithmetic; and what it could cost",
        "method times_sgd times_adamw best_times_sgd gradient products noise calls update bytes_per_weight of_copy",
    ),
    "chains-cost": _bench(
        chains_cost,
        "time of chains side by side against one after the other, and what their draws cost",
        "path members milliseconds speedup draws lppd_error predict_seconds predict_mebibytes",
    ),
    "forecast": _bench(
        forecast,
        "Koopa with intervals by MAP, ADVI, score-based VI and an ensemble on three sets of series",
        "data method seed mse mae nll coverage_0.9 nll_tempered",
    ),
    "guarantees": _bench(
        guarantees,
        "whether guaranteed risks and coverages are kept, over 400 calibrations on populations of known truth",
        "population rows score exceeded answers coverage possible covered size",
    ),
    "memory": _bench(
        memory,
        "what estimate_memory says of a fit against what the fit takes, for every method and three networks",
        "method network estimate_mebibytes taken_mebibytes ratio held_ratio held_copies fitted_copies",
    ),
    "scaling": _bench(
        scaling,
        "what two processes save over one, by rows, members and evaluations; plans for 305M and 7B weights by arithmetic",
        "method one_ms two_ms speedup machine of_machine two_compute_ms two_reduce_ms two_update_ms gbs mebibytes",
    ),
    "propagation-rules": _bench(
        propagation_rules,
        "how far the rules of variance propagation are from quadrature and draws",
        "rule accuracy std features share mean_error var_error wrong total_variation",
    ),
    "propagation-cost": _bench(
        propagation_cost,
        "time and memory of a pass of means and variances against the network's own",
        "method rows milliseconds times_mean peak_times_mean compile_seconds",
    ),
    "propagation-profile": _bench(
        propagation_profile,
        "what a pass of means and variances is made of, layer by layer: products, functions, arithmetic, calls",
        "rules milliseconds times_mean products functions elementwise calls operations",
    ),
    "propagation-covariance": _bench(
        propagation_covariance,
        "stds of outputs by the covariance of variance propagation against 1000 draws",
        "network via std_ratio std_ratio_spread correlation variation time draws",
    ),
    "propagation-models": _bench(
        propagation_models,
        "propagation through networks that others wrote: whether it runs, as graph and file too, and against 256 draws",
        "eager graph onnx mean_gap mean_gap_network var_ratio var_ratio_pooled log_var_correlation",
    ),
    "score-gaussian": _bench(
        score_gaussian,
        "score-based variational inference on normal targets of known spectra",
        "method seed kl kl_per_dim variance_ratio correlation_error",
    ),
    "score-mixture": _bench(
        score_mixture,
        "which of two modes each family finds, and with what weight",
        "seed kl right_mass seconds",
    ),
    "score-posteriordb": _bench(
        score_posteriordb,
        "score-based variational inference on sixteen posteriors with reference draws",
        "method seed trial elbo mean_error sd_ratio_low sd_ratio_high seconds",
    ),
    "score-mnist": _bench(
        score_mnist,
        "score-based variational inference on 1000 digits beside MAP, ADVI, IVON, Laplace and a deep ensemble",
        "method seed rate other validation_nll error nll ece ood_auroc seconds",
    ),
    "score-cost": _bench(
        score_cost,
        "time and memory of a step of score-based variational inference against SGD, AdamW and autograd's ADVI",
        "contestant milliseconds times_sgd median_times_sgd copies",
    ),
    "sghmc-gaussian": _bench(
        sghmc_gaussian,
        "Hamiltonian chains on normal targets: stationary variances, limits of stability, masses, gradient noise",
        "sampler friction step error eig_low eig_high",
    ),
    "bde-tabular": _bench(
        bde_tabular,
        "chains from the members of a converged ensemble on five tables: masses, noise correction, warm-up, step sizes",
        "method window picked step_size lppd single_lppd rmse coverage lost kinetic",
    ),
    "bde-image": _bench(
        bde_image,
        "chains from the members of an ensemble on Fashion-MNIST and on CIFAR-10 from JPEG files",
        "method window picked step_size lppd single_lppd accuracy ece lost kinetic",
    ),
    "bde-language": _bench(
        bde_language,
        "chains from the members of an ensemble of character models",
        "method window picked step_size lppd perplexity_test perplexity_lamb lost kinetic",
    ),
    "low-rank-cost": _bench(
        low_rank_cost,
        "a low-rank draw's gradient, predictions and whole trainings, against dense weights and an ensemble",
        "method contestant milliseconds times_dense passes times_ensemble times_adamw",
    ),
    "low-rank-fashion": _bench(
        low_rank_fashion,
        "low-rank networks, mean-field and an ensemble on Fashion-MNIST, and Kuzushiji as what is foreign",
        "method seed rate accuracy nll ece auroc_mi auroc_c auroc_var parameters seconds",
    ),
    "low-rank-change": _bench(
        low_rank_change,
        "Bayesian low-rank adaptation of a sentence encoder and of a language model",
        "method data_weight accuracy nll ece ood_auroc_mi_oos perplexity parameters seconds",
    ),
    "certificate": _bench(
        certificate,
        "PAC-Bayes bounds of low-rank and mean-field posteriors under three priors",
        "method prior verdict bound mcallester kl gibbs_error test_error majority_error",
    ),
    "low-rank-icu": _bench(
        low_rank_icu,
        "low-rank networks and six rivals on deaths in intensive care, and on patients of a unit that was never seen",
        "block method data_weight rate auroc nll ece ood_auroc_mi_csru parameters seconds",
    ),
    "selective": _bench(
        selective,
        "answering selectively: one calibrated pass, the mean network, a temperature, draws and streamlining on nine tasks",
        "method nll ece aurc coverage_at_risk_0.05 times_mean nll_minus_temperature aurc_minus_temperature",
    ),
    "low-rank-air": _bench(
        low_rank_air,
        "low-rank recurrent networks and six rivals on the air of Beijing, and of the country around it",
        "block method data_weight rmse nll coverage_95 width_95 mae_80 parameters seconds",
    ),
    "low-rank-text": _bench(
        low_rank_text,
        "low-rank transformers and six rivals on opinions of films, and on sentences about something else",
        "block method data_weight accuracy nll ece ood_auroc_mi_sms parameters seconds",
    ),
    "safety": _bench(
        safety,
        "kills, full disks, damaged files and hostile folders: what was lost, silently wrong, or ran",
        "what tries refused lost different wrong failed escaped ran",
    ),
    "transfer": _bench(
        transfer,
        "heads on what pretrained networks say: error, NLL, ECE, AUROC of foreign rows",
        "data method seed error nll ece ood_auroc_entropy ood_auroc_mi seconds",
    ),
}
